;; outer(n) -> middle -> leaf_hot(300 n)   75 %
;;          -> side_cold -> spin(100 n)    25 %
(module
  (func $spin (param $n i32) (result i64) (local $i i32) (local $x i64)
    (local.set $x (i64.const 88172645463325252))
    (loop $l
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 13))))
      (local.set $x (i64.xor (local.get $x) (i64.shr_u (local.get $x) (i64.const 7))))
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 17))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $l (i32.lt_u (local.get $i) (local.get $n))))
    (local.get $x))
  (func $leaf_hot (param $n i32) (result i64) (local $i i32) (local $x i64)
    (local.set $x (i64.const 88172645463325252))
    (loop $l
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 13))))
      (local.set $x (i64.xor (local.get $x) (i64.shr_u (local.get $x) (i64.const 7))))
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 17))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $l (i32.lt_u (local.get $i) (local.get $n))))
    (local.get $x))
  (func $middle (param $n i32) (result i64)
    (i64.add (call $leaf_hot (i32.mul (local.get $n) (i32.const 300))) (i64.const 1)))
  (func $side_cold (param $n i32) (result i64)
    (i64.add (call $spin (i32.mul (local.get $n) (i32.const 100))) (i64.const 1)))
  (func $outer (export "outer") (param $n i32) (result i64)
    (i64.add (call $middle (local.get $n)) (call $side_cold (local.get $n)))))
