;; A guest that writes over the call, the descriptors and its input while it runs.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: [0, 0, 0, 0, 0]
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)
    (memory.fill (i32.load offset=24 (i32.load offset=20 (local.get $call))) (i32.const 0) (i32.const 40))
    (memory.fill (i32.load offset=16 (local.get $call)) (i32.const 0xff) (i32.const 64))
    (memory.fill (i32.load offset=20 (local.get $call)) (i32.const 0xff) (i32.const 64))
    (memory.fill (local.get $call) (i32.const 0xff) (i32.const 64))
    i32.const 0))
