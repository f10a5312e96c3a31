;; A module whose memory is too large from the start.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: bytes of memory that it starts with: 4294967296, and at most 8388608 are allowed
(module
  (memory (export "memory") 65536)
  (func (export "udf1_call_f") (param $call i32) (result i32)

    i32.const 0))
