;; An import of WASI.
;; meta: {"abi":1,"name":"f","kind":"scalar","args":[{"name":"x","type":"i64"}],"returns":"i64"}
;; expect: it imports wasi_snapshot_preview1::fd_write; a user function gets no imports; build it for wasm32-unknown-unknown instead of a WASI target, and leave out files, clocks and printing
(module
  (import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "udf1_call_f") (param i32) (result i32) (i32.const 0)))
