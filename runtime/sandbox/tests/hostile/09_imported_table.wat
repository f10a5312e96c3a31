;; A table of the host.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: it imports table env::table; a user function gets no imports
(module
  (import "env" "table" (table 1 funcref))
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param i32) (result i32) (i32.const 0)))
