; Runs a function so that a crash inside it is a result, and not the end of the process: LLVM is built with
; assertions, and calls abort() where one fails. This is what LLVM's CrashRecoveryContext does: a handler that
; jumps out of the signal. Memory and locks of the function are lost. Linux only: the numbers of signals, the
; name of sigsetjmp.

@owner = internal global i64 0                              ; the thread that is inside
@back = internal global [64 x i64] zeroinitializer, align 16 ; a sigjmp_buf, which has 200 to 320 bytes

declare i32 @__sigsetjmp(ptr, i32) returns_twice nounwind
declare void @siglongjmp(ptr, i32) noreturn nounwind
declare ptr @signal(i32, ptr) nounwind
declare i32 @sigaction(i32, ptr, ptr) nounwind
declare i32 @raise(i32) nounwind
declare i64 @pthread_self() nounwind

define internal void @leave(i32 %signal) nounwind {
  %me = call i64 @pthread_self()
  %owner = load i64, ptr @owner
  %mine = icmp eq i64 %me, %owner
  br i1 %mine, label %out, label %other
out:
  call void @siglongjmp(ptr @back, i32 1)
  unreachable
other:                                            ; the crash of another thread ends the process
  %old = call ptr @signal(i32 %signal, ptr null)
  %code = call i32 @raise(i32 %signal)
  ret void
}

; 0 after `*result = function(a, b, c, d)`, 1 if that ended in SIGABRT (6) or SIGSEGV (11). One thread at a
; time, as there is one jump buffer. The signal mask is saved and restored with it (the second argument of
; sigsetjmp): the signal is blocked inside its handler, and would stay so.
define i32 @guarded(ptr %result, ptr %function, ptr %a, ptr %b, ptr %c, ptr %d) nounwind {
  %old.6 = alloca [32 x i64], align 16            ; a struct sigaction, which has 152 bytes
  %old.11 = alloca [32 x i64], align 16
  %r1 = call i32 @sigaction(i32 6, ptr null, ptr %old.6)
  %r2 = call i32 @sigaction(i32 11, ptr null, ptr %old.11)
  %me = call i64 @pthread_self()
  store i64 %me, ptr @owner
  %again = call i32 @__sigsetjmp(ptr @back, i32 1) returns_twice
  %first = icmp eq i32 %again, 0
  br i1 %first, label %run, label %done
run:
  %h1 = call ptr @signal(i32 6, ptr @leave)
  %h2 = call ptr @signal(i32 11, ptr @leave)
  %value = call ptr %function(ptr %a, ptr %b, ptr %c, ptr %d)
  store ptr %value, ptr %result
  br label %done
done:
  store i64 0, ptr @owner
  %r3 = call i32 @sigaction(i32 6, ptr %old.6, ptr null)
  %r4 = call i32 @sigaction(i32 11, ptr %old.11, ptr null)
  ret i32 %again
}
