;; A memory that cannot grow, so that columns have no room.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: its memory may not grow beyond 1 pages of 64 KiB, and columns need 16 pages on top of the 1 that it starts with; link it without a maximum
(module
  (memory (export "memory") 1 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)

    i32.const 0))
