;; A type that there is not.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"varchar"}
;; expect: `f`, result: `varchar` is not a type of ABI 1; the types are bool, i8 to i64, u8 to u64, f32, f64, decimal128(p,s), date32, timestamp(s|ms|us|ns), utf8, binary, list(type) and struct(name type, ...)
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)

    i32.const 0))
