; The threads of a GPU's block as fibers: glibc's contexts, which take turns in one thread of the CPU.
;
; Written for `emulator.py`, which fills in {fiber}, the bytes of a context, and {stack}, those of a stack.
; A thread that waits for others notes for what, and the host goes on with the next one: `sweep` runs every
; thread that waits for nothing until it does, or ends. Who may go on is decided in Python.

@tid = global i32 0
@ctaid = global i32 0
@nctaid = global i32 0
@phase = global i64 0 ; of the block: how many barriers it has passed, in all
@order = global [1024 x i32] zeroinitializer ; in which threads take their turns
@waits = global [1024 x i64] zeroinitializer ; 0: for nothing; -1: has ended; else the place and the mask
@words = global [1024 x i32] zeroinitializer ; what a thread hands to a shuffle
@far = global [1024 x i32] zeroinitializer ; and from how many threads on it takes a word
@got = global [1024 x i32] zeroinitializer ; that word
@kernel = global ptr null
@params = global ptr null
@contexts = global ptr null
@stacks = global ptr null
@log = global ptr null ; accesses to memory: address, kind and size, thread, phase
@logged = global i64 0
@most_logged = global i64 0
@heap = global ptr null ; memory is taken from its start on, and never used again
@heap_next = global i64 0
@heap_left = global i64 0 ; bytes that may be held at the same time
@heap_held = global i64 0
@heap_most = global i64 0

declare i32 @getcontext(ptr)
declare i32 @swapcontext(ptr, ptr)
declare void @makecontext(ptr, ptr, i32, ...)

define i32 @sreg_tid() {
  %t = load i32, ptr @tid
  ret i32 %t
}

define i32 @sreg_ctaid() {
  %b = load i32, ptr @ctaid
  ret i32 %b
}

define i32 @sreg_nctaid() {
  %n = load i32, ptr @nctaid
  ret i32 %n
}

define internal ptr @context(i32 %t) {
  %all = load ptr, ptr @contexts
  %k = zext i32 %t to i64
  %at = mul i64 %k, {fiber}
  %p = getelementptr i8, ptr %all, i64 %at
  ret ptr %p
}

define internal void @wait(i64 %what) noinline {
  %t = load i32, ptr @tid
  %w = getelementptr i64, ptr @waits, i32 %t
  store i64 %what, ptr %w
  %me = call ptr @context(i32 %t)
  %host = call ptr @context(i32 1024)
  call i32 @swapcontext(ptr %me, ptr %host)
  ret void
}

define void @block_barrier(i32 %site) {
  %s = zext i32 %site to i64
  %high = shl i64 %s, 33
  %what = or i64 %high, 4294967296
  call void @wait(i64 %what)
  ret void
}

define i32 @shfl_down(i32 %site, i32 %mask, i32 %word, i32 %distance, i32 %last) {
  %t = load i32, ptr @tid
  %to = getelementptr i32, ptr @words, i32 %t
  store i32 %word, ptr %to
  %d = getelementptr i32, ptr @far, i32 %t
  store i32 %distance, ptr %d
  %s = zext i32 %site to i64
  %high = shl i64 %s, 33
  %m = zext i32 %mask to i64
  %what = or i64 %high, %m
  call void @wait(i64 %what)
  %g = getelementptr i32, ptr @got, i32 %t
  %v = load i32, ptr %g
  ret i32 %v
}

define internal void @fiber() {
  %k = load ptr, ptr @kernel
  %p = load ptr, ptr @params
  call void %k(ptr %p)
  call void @wait(i64 -1)
  unreachable
}

; All threads of a block are about to start.
define void @begin(i32 %n) {
entry:
  %stacks = load ptr, ptr @stacks
  br label %one
one:
  %t = phi i32 [ 0, %entry ], [ %next, %one ]
  %w = getelementptr i64, ptr @waits, i32 %t
  store i64 0, ptr %w
  %c = call ptr @context(i32 %t)
  call i32 @getcontext(ptr %c)
  %k = zext i32 %t to i64
  %at = mul i64 %k, {stack}
  %stack = getelementptr i8, ptr %stacks, i64 %at
  %link = getelementptr i8, ptr %c, i64 8
  store ptr null, ptr %link
  %sp = getelementptr i8, ptr %c, i64 16
  store ptr %stack, ptr %sp
  %size = getelementptr i8, ptr %c, i64 32
  store i64 {stack}, ptr %size
  call void (ptr, ptr, i32, ...) @makecontext(ptr %c, ptr @fiber, i32 0)
  %next = add i32 %t, 1
  %more = icmp ult i32 %next, %n
  br i1 %more, label %one, label %done
done:
  ret void
}

define void @sweep(i32 %n) {
entry:
  %host = call ptr @context(i32 1024)
  br label %one
one:
  %k = phi i32 [ 0, %entry ], [ %next, %after ]
  %o = getelementptr i32, ptr @order, i32 %k
  %t = load i32, ptr %o
  %w = getelementptr i64, ptr @waits, i32 %t
  %what = load i64, ptr %w
  %ready = icmp eq i64 %what, 0
  br i1 %ready, label %run, label %after
run:
  store i32 %t, ptr @tid
  %c = call ptr @context(i32 %t)
  call i32 @swapcontext(ptr %host, ptr %c)
  br label %after
after:
  %next = add i32 %k, 1
  %more = icmp ult i32 %next, %n
  br i1 %more, label %one, label %done
done:
  ret void
}

; The threads of a block where none ever waits: one after the other, without fibers.
define void @through(i32 %n) {
entry:
  %f = load ptr, ptr @kernel
  %p = load ptr, ptr @params
  br label %one
one:
  %k = phi i32 [ 0, %entry ], [ %next, %one ]
  %o = getelementptr i32, ptr @order, i32 %k
  %t = load i32, ptr %o
  store i32 %t, ptr @tid
  call void %f(ptr %p)
  %next = add i32 %k, 1
  %more = icmp ult i32 %next, %n
  br i1 %more, label %one, label %done
done:
  ret void
}

define void @note(ptr %p, i64 %what) {
entry:
  %n = load i64, ptr @logged
  %next = add i64 %n, 1
  store i64 %next, ptr @logged
  %most = load i64, ptr @most_logged
  %fits = icmp ult i64 %n, %most
  br i1 %fits, label %write, label %done
write:
  %log = load ptr, ptr @log
  %row = getelementptr [4 x i64], ptr %log, i64 %n
  store ptr %p, ptr %row
  %second = getelementptr i64, ptr %row, i64 1
  store i64 %what, ptr %second
  %b = load i32, ptr @ctaid
  %t = load i32, ptr @tid
  %high = shl i32 %b, 10
  %who = or i32 %high, %t
  %wide = zext i32 %who to i64
  %third = getelementptr i64, ptr %row, i64 2
  store i64 %wide, ptr %third
  %phase = load i64, ptr @phase
  %fourth = getelementptr i64, ptr %row, i64 3
  store i64 %phase, ptr %fourth
  br label %done
done:
  ret void
}

define noalias ptr @device_malloc(i64 %n) {
entry:
  %held = load i64, ptr @heap_held
  %more = add i64 %held, %n
  %left = load i64, ptr @heap_left
  %fits = icmp ule i64 %more, %left
  br i1 %fits, label %take, label %none
take:
  store i64 %more, ptr @heap_held
  %most = load i64, ptr @heap_most
  %larger = call i64 @llvm.umax.i64(i64 %more, i64 %most)
  store i64 %larger, ptr @heap_most
  %next = load i64, ptr @heap_next
  %some = add i64 %n, 31 ; 16 bytes before it hold its size
  %whole = and i64 %some, -16
  %end = add i64 %next, %whole
  store i64 %end, ptr @heap_next
  %heap = load ptr, ptr @heap
  %at = getelementptr i8, ptr %heap, i64 %next
  store i64 %n, ptr %at
  %p = getelementptr i8, ptr %at, i64 16
  ret ptr %p
none:
  ret ptr null
}

define void @device_free(ptr %p) {
entry:
  %at = getelementptr i8, ptr %p, i64 -16
  %n = load i64, ptr %at
  store i64 0, ptr %at ; what is freed twice counts once, and is seen
  %zero = icmp eq i64 %n, 0
  %by = select i1 %zero, i64 4611686018427387904, i64 %n
  %held = load i64, ptr @heap_held
  %less = sub i64 %held, %by
  store i64 %less, ptr @heap_held
  ret void
}

declare i64 @llvm.umax.i64(i64, i64)

define void @red_v2(ptr %p, float %a, float %b) {
  atomicrmw fadd ptr %p, float %a monotonic
  %q = getelementptr float, ptr %p, i64 1
  atomicrmw fadd ptr %q, float %b monotonic
  ret void
}

define void @red_v4(ptr %p, float %a, float %b, float %c, float %d) {
  call void @red_v2(ptr %p, float %a, float %b)
  %q = getelementptr float, ptr %p, i64 2
  call void @red_v2(ptr %q, float %c, float %d)
  ret void
}

; What libdevice has and libm has not.
define double @rsqrt(double %x) {
  %root = call double @llvm.sqrt.f64(double %x)
  %y = fdiv double 1.0, %root
  ret double %y
}

define float @rsqrtf(float %x) {
  %root = call float @llvm.sqrt.f32(float %x)
  %y = fdiv float 1.0, %root
  ret float %y
}

declare double @llvm.sqrt.f64(double)
declare float @llvm.sqrt.f32(float)
