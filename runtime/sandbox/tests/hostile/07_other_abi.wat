;; A module of a later ABI.
;; meta: {"abi":2,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: metadata record 1 is of ABI 2, and this build runs ABI 1; build the module with a kit of that version
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)

    i32.const 0))
