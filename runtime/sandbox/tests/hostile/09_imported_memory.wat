;; A memory of the host.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: it imports memory env::memory; a user function gets no imports
(module
  (import "env" "memory" (memory 1))
  (export "memory" (memory 0))
  (func (export "udf1_call_f") (param i32) (result i32) (i32.const 0)))
