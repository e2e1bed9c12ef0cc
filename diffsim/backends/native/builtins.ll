; Functions of compiler runtimes that LLVM may call and no C library has: compilers link their own. The first
; two are for `llvm.powi`, which LLVM makes of a power with an integer exponent under fast math. Repeated
; squaring, the reciprocal last, as compiler-rt does it.

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

; Conversions of f16, for processors without instructions for them. On the bits: `fpext half` would call itself.

define float @__extendhfsf2(half %x) nounwind {
  %narrow = bitcast half %x to i16
  %bits = zext i16 %narrow to i32
  %rest = and i32 %bits, 32767
  %sign = and i32 %bits, 32768
  %minus = shl i32 %sign, 16
  ; Other exponents are the same number plus 112. Subnormal numbers count steps of 2^-24.
  %wide = shl i32 %rest, 13
  %normal = add i32 %wide, 939524096
  %steps = uitofp i32 %rest to float
  %small = fmul float %steps, 0x3E70000000000000
  %small.bits = bitcast float %small to i32
  %is.small = icmp ult i32 %rest, 1024
  %finite = select i1 %is.small, i32 %small.bits, i32 %normal
  %is.infinite = icmp uge i32 %rest, 31744
  %infinite = or i32 %wide, 2139095040
  %is.nan = icmp ugt i32 %rest, 31744
  %quiet = or i32 %infinite, 4194304
  %other = select i1 %is.nan, i32 %quiet, i32 %infinite
  %found = select i1 %is.infinite, i32 %other, i32 %finite
  %signed = or i32 %found, %minus
  %result = bitcast i32 %signed to float
  ret float %result
}

define half @__truncsfhf2(float %x) nounwind {
  %bits = bitcast float %x to i32
  %rest = and i32 %bits, 2147483647
  %high = lshr i32 %bits, 16
  %minus = and i32 %high, 32768
  ; To nearest, halves to even: half a step less one, and one more if the last digit is odd.
  %shifted = sub i32 %rest, 939524096
  %digits = lshr i32 %rest, 13
  %last = and i32 %digits, 1
  %half.step = add i32 %last, 4095
  %rounded = add i32 %shifted, %half.step
  %normal = lshr i32 %rounded, 13
  ; Beside 0.5 a float has steps of 2^-24, as subnormal numbers of f16 have: the addition rounds.
  %size = bitcast i32 %rest to float
  %sum = fadd float %size, 0.5
  %sum.bits = bitcast float %sum to i32
  %small = sub i32 %sum.bits, 1056964608
  %is.small = icmp ult i32 %rest, 947912704
  %finite = select i1 %is.small, i32 %small, i32 %normal
  %is.infinite = icmp uge i32 %rest, 1199566848
  %is.nan = icmp ugt i32 %rest, 2139095040
  %payload = and i32 %digits, 1023
  %nan = or i32 %payload, 32256
  %other = select i1 %is.nan, i32 %nan, i32 31744
  %found = select i1 %is.infinite, i32 %other, i32 %finite
  %signed = or i32 %found, %minus
  %narrow = trunc i32 %signed to i16
  %result = bitcast i16 %narrow to half
  ret half %result
}
