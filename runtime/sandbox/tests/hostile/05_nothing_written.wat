;; A function that writes nothing at all: empty texts, and nothing of what lay there before.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"utf8"}
;; expect: ["", "", "", "", ""]
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)

    i32.const 0))
