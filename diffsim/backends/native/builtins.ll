; Functions of compiler runtimes that LLVM may call and no C library has: compilers link their own. These are
; for `llvm.powi`, which LLVM makes of a power with an integer exponent under fast math. Repeated squaring, the
; reciprocal last, as compiler-rt does it.

define double @__powidf2(double %x, i32 %n) nounwind {
entry:
  %below = icmp slt i32 %n, 0
  %minus = sub i32 0, %n
  %count = select i1 %below, i32 %minus, i32 %n
  br label %bit
bit:
  %left = phi i32 [ %count, %entry ], [ %rest, %bit ]
  %square = phi double [ %x, %entry ], [ %squared, %bit ]
  %power = phi double [ 1.0, %entry ], [ %next, %bit ]
  %low = and i32 %left, 1
  %odd = icmp ne i32 %low, 0
  %more = fmul double %power, %square
  %next = select i1 %odd, double %more, double %power
  %squared = fmul double %square, %square
  %rest = lshr i32 %left, 1
  %end = icmp eq i32 %rest, 0
  br i1 %end, label %done, label %bit
done:
  %inverse = fdiv double 1.0, %next
  %result = select i1 %below, double %inverse, double %next
  ret double %result
}

define float @__powisf2(float %x, i32 %n) nounwind {
  %wide = fpext float %x to double
  %power = call double @__powidf2(double %wide, i32 %n)
  %result = fptrunc double %power to float
  ret float %result
}
