;; Two memories.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: it is not a WebAssembly module: multiple memories (at byte 22)
(module
  (memory (export "memory") 1)
  (memory 1)
  (func (export "udf1_call_f") (param i32) (result i32) (i32.const 0)))
