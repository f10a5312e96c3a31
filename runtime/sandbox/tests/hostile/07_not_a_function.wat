;; An entry point that is no function.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: the export `udf1_call_f` is not a function
(module
  (memory (export "memory") 1)
  (global (export "udf1_call_f") i32 (i32.const 0)))
