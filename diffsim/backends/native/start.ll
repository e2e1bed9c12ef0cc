; i32 start(plan): launch n GPU functions in order, with one call from Python. The words of the plan: the four
; functions of the driver, context, stream, n; then n times function, grid, block, arguments. The context is
; made current and restored only where another one is. Returns the first error, or 0.
define i32 @start(ptr %plan) nounwind {
entry:
  %now = alloca ptr
  %current = load ptr, ptr %plan
  %p1 = getelementptr ptr, ptr %plan, i64 1
  %push = load ptr, ptr %p1
  %p2 = getelementptr ptr, ptr %plan, i64 2
  %pop = load ptr, ptr %p2
  %p3 = getelementptr ptr, ptr %plan, i64 3
  %launch = load ptr, ptr %p3
  %p4 = getelementptr ptr, ptr %plan, i64 4
  %context = load ptr, ptr %p4
  %p5 = getelementptr ptr, ptr %plan, i64 5
  %stream = load ptr, ptr %p5
  %p6 = getelementptr ptr, ptr %plan, i64 6
  %n = load i64, ptr %p6
  store ptr null, ptr %now
  %a = call i32 %current(ptr %now)
  %was = load ptr, ptr %now
  %here = icmp eq ptr %was, %context
  br i1 %here, label %turn, label %enter
enter:
  %pushed = call i32 %push(ptr %context)
  %bad = icmp ne i32 %pushed, 0
  br i1 %bad, label %refused, label %turn
refused:
  ret i32 %pushed
turn:
  %k = phi i64 [ 0, %entry ], [ 0, %enter ], [ %next, %go ]
  %last = phi i32 [ 0, %entry ], [ 0, %enter ], [ %code, %go ]
  %more = icmp ult i64 %k, %n
  %good = icmp eq i32 %last, 0
  %on = and i1 %more, %good
  br i1 %on, label %go, label %done
go:
  %first = shl i64 %k, 2
  %at = add i64 %first, 7
  %q0 = getelementptr i64, ptr %plan, i64 %at
  %q1 = getelementptr i64, ptr %q0, i64 1
  %q2 = getelementptr i64, ptr %q0, i64 2
  %q3 = getelementptr i64, ptr %q0, i64 3
  %function = load ptr, ptr %q0
  %grid = load i32, ptr %q1
  %block = load i32, ptr %q2
  %params = load ptr, ptr %q3
  %code = call i32 %launch(ptr %function, i32 %grid, i32 1, i32 1, i32 %block, i32 1, i32 1, i32 0,
      ptr %stream, ptr %params, ptr null)
  %next = add i64 %k, 1
  br label %turn
done:
  br i1 %here, label %end, label %leave
leave:
  %b = call i32 %pop(ptr %now)
  br label %end
end:
  ret i32 %last
}
