;; An import.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: it imports env::sys, env::open; a user function gets no imports
(module
  (import "env" "sys" (func (param i32)))
  (import "env" "open" (func (result i32)))
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param i32) (result i32) (i32.const 0)))
