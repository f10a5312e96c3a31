;; A module without metadata.
;; expect: it has no `udf1.meta` section: in Rust, put #[udf] on the functions; in other languages, add the metadata with `warpline udf pack`
(module
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param $call i32) (result i32)

    i32.const 0))
