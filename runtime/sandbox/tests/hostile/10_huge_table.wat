;; A table of a hundred million entries.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: elements of tables: 100000000, and at most 10000 are allowed
(module
  (memory (export "memory") 1)
  (table 100000000 funcref)
  (func (export "udf1_call_f") (param $call i32) (result i32)

    i32.const 0))
