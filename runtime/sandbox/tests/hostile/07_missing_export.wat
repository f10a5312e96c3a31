;; Metadata of a function that is not there.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; meta: {"abi":1,"name":"g","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: function `g` needs the export `udf1_call_g` (i32) -> (i32), which is absent
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)

    i32.const 0))
