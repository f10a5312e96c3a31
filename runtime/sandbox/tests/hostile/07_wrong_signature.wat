;; An entry point of another type.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: the export `udf1_call_f` is (i32, i64) -> (), and (i32) -> (i32) is wanted
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param i32 i64)))
