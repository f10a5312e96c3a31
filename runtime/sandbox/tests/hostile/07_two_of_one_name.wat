;; Two functions of one name.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: two functions are called `f`
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)

    i32.const 0))
