; A pool of native threads for parallel loops, and scratch memory for each of them.
;
; The words. The CALLER is the thread inside ds_parallel_for (worker 0; one at a time). A job is one
; call, split in chunks. Each thread has a SHARE of them, a range: it draws the first one of its own
; share, and when that is empty the last one of another's. So a thread meets, in job after job, the
; part of memory that it has in its cache (docs/adr/0073). A worker JOINS a job before it touches it
; and LEAVES it when no chunk is left. Joining is optional: the caller can finish any job alone, so it
; waits for workers that joined and never for one that is still asleep, not yet scheduled, or could
; not be created.
;
; The state word, one atomic i64:
;     bits 0-15   active: workers that joined the job and have not left
;     bits 16-31  seats:  how many more may join; 0 = no job, or closed
;     bit  32     stop:   the pool is being destroyed
;     bits 33-63  generation, one more for each job; it may wrap: at worst a worker misses a job
;
; Who does what, with which order:
;   publish  caller   writes %Job and the shares (plain), then state = (generation + 1, seats, 0)
;                     seq_cst. Before that, seats = active = 0, so nobody else reads or writes them.
;   join     worker   cmpxchg state (seats - 1, active + 1), acquire; only of a generation that it
;                     has not seen, with seats > 0. It reads from the publishing store or from a
;                     chain of read-modify-writes that starts there, so it sees the job.
;   draw     both     cmpxchg on a share, monotonic: the value is all that matters. Within a job a share
;                     only shrinks, from either end, so no value of it comes back.
;   leave    worker   atomicrmw sub active, release.
;   close    caller   atomicrmw and state (seats = 0), acquire, then reloads (acquire) until
;                     active = 0. That value ends a chain that holds every leave of the job, so the
;                     caller sees all that the workers wrote, and may write the next job.
;   cancel   caller   empties all shares (monotonic): chunks not yet drawn do not run.
;
; Sleep and wake. A worker that saw no new job for %SPIN ns takes the mutex, adds itself to
; `sleepers` (seq_cst), reads the state again (seq_cst) and waits on the condition. The caller
; publishes (seq_cst) and then reads `sleepers` (seq_cst): in the one order of these four, either
; the worker sees the job or the caller sees the sleeper. In the second case the caller takes the
; mutex once, so a worker between its check and its wait is waiting by then, and signals. It only
; *tries* the mutex, again before each of its chunks: a worker preempted while holding it does not
; hold up the job. `stop` is set and signalled in the same way.
;
; When the launching thread releases the GIL, and how a launch is stopped: `gate.ll`, in one module with this.
;
; Scratch arenas belong to one worker each: no atomics but for the byte count, which others read. As many
; arenas behind them are for the workers' logs.
; Blocks form a list in the order of their first use; a mark is an address, and releasing it
; finds the block that holds it. Blocks stay for reuse until the pool goes.
;
; pool.py replaces the four constants of the next section with the platform's.

@CLOCK_MONOTONIC = internal constant i32 1
@SIG_SETMASK = internal constant i32 2
@SPIN = internal constant i64 40000          ; [ns]

define internal void @relax() alwaysinline nounwind {
  call void asm sideeffect "pause", ""()
  ret void
}

; Each 128 bytes: adjacent cache lines are fetched in pairs.
;                  raw  threads check started busy
%Head = type { ptr, i64, ptr, i64, i64, [11 x i64] }
%Line = type { i64, [15 x i64] }
;                 task params quotient remainder chunks shares
%Job = type { ptr, ptr, i64, i64, i64, i64, [10 x i64] }
;                    pool index block cursor end first bytes thread share, in a cache line of its own:
;                    bits 0-31 the first chunk, bits 32-63 the one behind the last
%Worker = type { ptr, i64, ptr, i64, i64, ptr, i64, i64, i64, [7 x i64] }
;                  0 head 1 state 2 sleepers 3 job 4 mutex 5 condition 6 workers
%Pool = type { %Head, %Line, %Line, %Job, [16 x i64], [16 x i64], [0 x %Worker] }
;                   next payload end
%Block = type { ptr, i64, i64 }

declare i32 @pthread_create(ptr, ptr, ptr, ptr) nounwind
declare i32 @pthread_join(i64, ptr) nounwind
declare i32 @pthread_attr_init(ptr) nounwind
declare i32 @pthread_attr_setstacksize(ptr, i64) nounwind
declare i32 @pthread_attr_destroy(ptr) nounwind
declare i32 @pthread_mutex_init(ptr, ptr) nounwind
declare i32 @pthread_mutex_destroy(ptr) nounwind
declare i32 @pthread_mutex_lock(ptr) nounwind
declare i32 @pthread_mutex_trylock(ptr) nounwind
declare i32 @pthread_mutex_unlock(ptr) nounwind
declare i32 @pthread_cond_init(ptr, ptr) nounwind
declare i32 @pthread_cond_destroy(ptr) nounwind
declare i32 @pthread_cond_wait(ptr, ptr) nounwind
declare i32 @pthread_cond_signal(ptr) nounwind
declare i32 @pthread_cond_broadcast(ptr) nounwind
declare i32 @pthread_sigmask(i32, ptr, ptr) nounwind
declare i32 @sigfillset(ptr) nounwind
declare i32 @sched_yield() nounwind
declare i32 @clock_gettime(i32, ptr) nounwind
declare ptr @malloc(i64) nounwind
declare void @free(ptr) nounwind
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

; Monotonic time [ns].
define internal i64 @now() nounwind {
  %time = alloca { i64, i64 }
  %id = load i32, ptr @CLOCK_MONOTONIC
  %rc = call i32 @clock_gettime(i32 %id, ptr %time)
  %s = load i64, ptr %time
  %ns.p = getelementptr { i64, i64 }, ptr %time, i64 0, i32 1
  %ns = load i64, ptr %ns.p
  %whole = mul i64 %s, 1000000000
  %sum = add i64 %whole, %ns
  ret i64 %sum
}

; ---- Life of a pool ----------------------------------------------------------------------------

; A pool of `threads` threads, the caller's included; null when out of memory. Threads start with
; the first parallel job. `check` is null or `i32 check()`: see ds_pool_poll.
define ptr @ds_pool_create(i64 %threads, ptr %check) nounwind {
entry:
  %least = call i64 @llvm.smax.i64(i64 %threads, i64 1)
  %count = call i64 @llvm.umin.i64(i64 %least, i64 32767)
  %arenas = shl i64 %count, 1
  %end = getelementptr %Pool, ptr null, i64 0, i32 6, i64 %arenas
  %size = ptrtoint ptr %end to i64
  %padded = add i64 %size, 127
  %raw = call ptr @malloc(i64 %padded)
  %failed = icmp eq ptr %raw, null
  br i1 %failed, label %out, label %fill
out:
  ret ptr null
fill:
  %address = ptrtoint ptr %raw to i64
  %up = add i64 %address, 127
  %aligned = and i64 %up, -128
  %pool = inttoptr i64 %aligned to ptr
  call void @llvm.memset.p0.i64(ptr align 128 %pool, i8 0, i64 %size, i1 false)
  store ptr %raw, ptr %pool
  %threads.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 1
  store i64 %count, ptr %threads.p
  %check.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 2
  store ptr %check, ptr %check.p
  br label %worker
worker:
  %i = phi i64 [ 0, %fill ], [ %i.next, %worker ]
  %pool.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %i, i32 0
  store ptr %pool, ptr %pool.p
  %index.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %i, i32 1
  store i64 %i, ptr %index.p
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %arenas
  br i1 %more, label %worker, label %done
done:
  call void @reset_threads(ptr %pool)
  ret ptr %pool
}

; Reset all that concerns threads to "none started". Mutex and condition are made anew: a fork may have
; copied a locked one.
define internal void @reset_threads(ptr %pool) nounwind {
  %started.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 3
  store i64 -1, ptr %started.p
  %busy.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 4
  store i64 0, ptr %busy.p
  %sleepers.p = getelementptr %Pool, ptr %pool, i64 0, i32 2
  store i64 0, ptr %sleepers.p
  %state.p = getelementptr %Pool, ptr %pool, i64 0, i32 1
  %state = load i64, ptr %state.p
  %generation = and i64 %state, -8589934592
  %next = add i64 %generation, 8589934592
  store i64 %next, ptr %state.p
  %mutex = getelementptr %Pool, ptr %pool, i64 0, i32 4
  %rc1 = call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %condition = getelementptr %Pool, ptr %pool, i64 0, i32 5
  %rc2 = call i32 @pthread_cond_init(ptr %condition, ptr null)
  ret void
}

; In the child of a fork: its threads and what they had in their arenas are gone, the memory is not.
define void @ds_pool_after_fork(ptr %pool) nounwind {
entry:
  call void @reset_threads(ptr %pool)
  %threads.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 1
  %threads = load i64, ptr %threads.p
  %arenas = shl i64 %threads, 1
  br label %next
next:
  %i = phi i64 [ 1, %entry ], [ %i.next, %reset ]
  %more = icmp ult i64 %i, %arenas
  br i1 %more, label %reset, label %done
reset:
  call void @ds_arena_release(ptr %pool, i64 %i, i64 0)
  %i.next = add i64 %i, 1
  br label %next
done:
  ret void
}

; Stop and join the threads, free everything. No job may be running.
define void @ds_pool_destroy(ptr %pool) nounwind {
entry:
  %started.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 3
  %started = load i64, ptr %started.p
  %mutex = getelementptr %Pool, ptr %pool, i64 0, i32 4
  %condition = getelementptr %Pool, ptr %pool, i64 0, i32 5
  %any = icmp sgt i64 %started, 0
  br i1 %any, label %stop, label %arenas
stop:
  %state.p = getelementptr %Pool, ptr %pool, i64 0, i32 1
  %old = atomicrmw or ptr %state.p, i64 4294967296 seq_cst
  %rc1 = call i32 @pthread_mutex_lock(ptr %mutex)
  %rc2 = call i32 @pthread_mutex_unlock(ptr %mutex)
  %rc3 = call i32 @pthread_cond_broadcast(ptr %condition)
  br label %join
join:
  %i = phi i64 [ 1, %stop ], [ %i.next, %join ]
  %thread.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %i, i32 7
  %thread = load i64, ptr %thread.p
  %rc4 = call i32 @pthread_join(i64 %thread, ptr null)
  %i.next = add i64 %i, 1
  %last = icmp ugt i64 %i.next, %started
  br i1 %last, label %arenas, label %join
arenas:
  %rc5 = call i32 @pthread_cond_destroy(ptr %condition)
  %rc6 = call i32 @pthread_mutex_destroy(ptr %mutex)
  %threads.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 1
  %threads = load i64, ptr %threads.p
  %all.arenas = shl i64 %threads, 1
  br label %arena
arena:
  %w = phi i64 [ 0, %arenas ], [ %w.next, %arena.done ]
  %first.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %w, i32 5
  %first = load ptr, ptr %first.p
  br label %block
block:
  %b = phi ptr [ %first, %arena ], [ %b.next, %block.free ]
  %end = icmp eq ptr %b, null
  br i1 %end, label %arena.done, label %block.free
block.free:
  %b.next = load ptr, ptr %b
  call void @free(ptr %b)
  br label %block
arena.done:
  %w.next = add i64 %w, 1
  %w.more = icmp ult i64 %w.next, %all.arenas
  br i1 %w.more, label %arena, label %out
out:
  %raw = load ptr, ptr %pool
  call void @free(ptr %raw)
  ret void
}

; Create the worker threads; returns how many there are, which may be fewer than asked for.
define internal i64 @start_workers(ptr %pool) noinline nounwind {
entry:
  %attributes = alloca [16 x i64], align 16
  %all = alloca [16 x i64], align 16
  %before = alloca [16 x i64], align 16
  %threads.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 1
  %threads = load i64, ptr %threads.p
  %rc1 = call i32 @pthread_attr_init(ptr %attributes)
  ; Kernels keep small arrays on the stack; macOS gives threads 512 KiB only.
  %rc2 = call i32 @pthread_attr_setstacksize(ptr %attributes, i64 8388608)
  ; Signals are for Python's threads: a system call there must be the one that gets interrupted.
  %rc3 = call i32 @sigfillset(ptr %all)
  %how = load i32, ptr @SIG_SETMASK
  %rc4 = call i32 @pthread_sigmask(i32 %how, ptr %all, ptr %before)
  br label %next
next:
  %i = phi i64 [ 1, %entry ], [ %i.next, %create ]
  %more = icmp ult i64 %i, %threads
  br i1 %more, label %create, label %done
create:
  %self = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %i
  %thread.p = getelementptr %Worker, ptr %self, i64 0, i32 7
  %rc5 = call i32 @pthread_create(ptr %thread.p, ptr %attributes, ptr @worker, ptr %self)
  %ok = icmp eq i32 %rc5, 0
  %i.next = add i64 %i, 1
  br i1 %ok, label %next, label %done
done:
  %rc6 = call i32 @pthread_sigmask(i32 %how, ptr %before, ptr null)
  %rc7 = call i32 @pthread_attr_destroy(ptr %attributes)
  %started = sub i64 %i, 1
  %started.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 3
  store i64 %started, ptr %started.p
  ret i64 %started
}

; ---- Jobs --------------------------------------------------------------------------------------

; Chunk c is [c*n/chunks, (c+1)*n/chunks). With n = q*chunks + r that is c*q + c*r/chunks, which
; cannot overflow for chunks < 2^31.
define internal void @run_chunk(ptr %task, ptr %params, i64 %q, i64 %r, i64 %chunks, i64 %c,
                                i64 %worker) alwaysinline nounwind {
  %base = mul i64 %c, %q
  %part = mul i64 %c, %r
  %extra = udiv i64 %part, %chunks
  %begin = add i64 %base, %extra
  %base.end = add i64 %base, %q
  %part.end = add i64 %part, %r
  %extra.end = udiv i64 %part.end, %chunks
  %end = add i64 %base.end, %extra.end
  call void %task(ptr %params, i64 %begin, i64 %end, i64 %c, i64 %worker) nounwind
  ret void
}

; Whether to stop: `stop` is set already, or poll says so, and then sets it for all threads.
define internal i1 @is_over(ptr %pool, ptr %stop) nounwind {
entry:
  %set = load atomic i64, ptr %stop monotonic, align 8
  %stopped = icmp ne i64 %set, 0
  br i1 %stopped, label %yes, label %poll
poll:
  %answer = call i64 @ds_pool_poll(ptr %pool)
  %no = icmp eq i64 %answer, 0
  br i1 %no, label %go_on, label %note
note:
  store atomic i64 1, ptr %stop monotonic, align 8
  br label %yes
yes:
  ret i1 true
go_on:
  ret i1 false
}

; Run all chunks on the calling thread, in order.
define internal i64 @run_inline(ptr %pool, ptr %task, ptr %params, i64 %q, i64 %r, i64 %chunks,
                                ptr %stop) nounwind {
entry:
  br label %chunk
chunk:
  %c = phi i64 [ 0, %entry ], [ %c.next, %between ]
  call void @run_chunk(ptr %task, ptr %params, i64 %q, i64 %r, i64 %chunks, i64 %c, i64 0)
  %c.next = add i64 %c, 1
  %over = call i1 @is_over(ptr %pool, ptr %stop)
  br i1 %over, label %cancel, label %between
between:
  %more = icmp ult i64 %c.next, %chunks
  br i1 %more, label %chunk, label %done
done:
  ret i64 0
cancel:
  ret i64 1
}

; As ds_parallel_for, but all chunks run on the calling thread, in their order.
define i64 @ds_serial_for(ptr %pool, ptr %task, ptr %params, i64 %n, i64 %chunks, ptr %stop) nounwind {
  %q = udiv i64 %n, %chunks
  %r = urem i64 %n, %chunks
  %rc = call i64 @run_inline(ptr %pool, ptr %task, ptr %params, i64 %q, i64 %r, i64 %chunks, ptr %stop)
  ret i64 %rc
}

; Give each of the shares its part of the chunks, in order; 0 chunks empty them.
define internal void @share_out(ptr %pool, i64 %shares, i64 %chunks) nounwind {
entry:
  br label %share
share:
  %i = phi i64 [ 0, %entry ], [ %i.next, %share ]
  %first = phi i64 [ 0, %entry ], [ %behind, %share ]
  %i.next = add i64 %i, 1
  %part = mul i64 %i.next, %chunks
  %behind = udiv i64 %part, %shares
  %high = shl i64 %behind, 32
  %range = or i64 %high, %first
  %share.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %i, i32 8
  store atomic i64 %range, ptr %share.p monotonic, align 8
  %more = icmp ult i64 %i.next, %shares
  br i1 %more, label %share, label %done
done:
  ret void
}

; Draw a chunk: the first one of a thread's own share, else the last one of another's; -1: none is left.
define internal i64 @draw(ptr %pool, i64 %own, i64 %shares) nounwind {
entry:
  %own.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %own, i32 8
  br label %look
look:
  %range = load atomic i64, ptr %own.p monotonic, align 8
  %first = and i64 %range, 4294967295
  %behind = lshr i64 %range, 32
  %some = icmp ult i64 %first, %behind
  br i1 %some, label %take, label %others
take:
  %shorter = add i64 %range, 1
  %taken = cmpxchg ptr %own.p, i64 %range, i64 %shorter monotonic monotonic
  %ok = extractvalue { i64, i1 } %taken, 1
  br i1 %ok, label %got, label %look
got:
  ret i64 %first
others:
  %away = phi i64 [ 0, %look ], [ %away.next, %visit ]
  %away.next = add i64 %away, 1
  %more = icmp ult i64 %away.next, %shares
  br i1 %more, label %visit, label %none
visit:
  %at = add i64 %own, %away.next
  %beyond = icmp uge i64 %at, %shares
  %at.back = sub i64 %at, %shares
  %other = select i1 %beyond, i64 %at.back, i64 %at
  %other.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %other, i32 8
  %theirs = load atomic i64, ptr %other.p monotonic, align 8
  %theirs.first = and i64 %theirs, 4294967295
  %theirs.behind = lshr i64 %theirs, 32
  %theirs.some = icmp ult i64 %theirs.first, %theirs.behind
  br i1 %theirs.some, label %steal, label %others
steal:
  %less = sub i64 %theirs, 4294967296
  %stolen = cmpxchg ptr %other.p, i64 %theirs, i64 %less monotonic monotonic
  %theirs.ok = extractvalue { i64, i1 } %stolen, 1
  %last = sub i64 %theirs.behind, 1
  br i1 %theirs.ok, label %got.other, label %visit
got.other:
  ret i64 %last
none:
  ret i64 -1
}

; Run `void task(params, begin, end, chunk, worker)` for every chunk, 0 <= chunk < chunks < 2^31.
; Returns 0, or 1 where poll stopped it, or the task, which says so in the word `stop`. A task must not launch;
; a launch made by a signal's handler runs all its chunks on its own thread, so it is over when that returns.
define i64 @ds_parallel_for(ptr %pool, ptr %task, ptr %params, i64 %n.any, i64 %chunks,
                            ptr %stop) nounwind {
entry:
  %n = call i64 @llvm.smax.i64(i64 %n.any, i64 0)
  %many = icmp sgt i64 %chunks, 1
  br i1 %many, label %enter, label %few
few:
  %one = icmp eq i64 %chunks, 1
  br i1 %one, label %single, label %nothing
single:
  call void %task(ptr %params, i64 0, i64 %n, i64 0, i64 0) nounwind
  br label %nothing
nothing:
  %stop.few = load atomic i64, ptr %stop monotonic, align 8
  ret i64 %stop.few
enter:
  %q = udiv i64 %n, %chunks
  %r = urem i64 %n, %chunks
  %busy.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 4
  %got = cmpxchg ptr %busy.p, i64 0, i64 1 acquire monotonic
  %free = extractvalue { i64, i1 } %got, 1
  br i1 %free, label %count, label %nested
nested:
  %nested.rc = call i64 @run_inline(ptr %pool, ptr %task, ptr %params, i64 %q, i64 %r,
                                    i64 %chunks, ptr %stop)
  ret i64 %nested.rc
count:
  %started.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 3
  %started.old = load i64, ptr %started.p
  %fresh = icmp slt i64 %started.old, 0
  br i1 %fresh, label %start, label %choose
start:
  %started.new = call i64 @start_workers(ptr %pool)
  br label %choose
choose:
  %started = phi i64 [ %started.old, %count ], [ %started.new, %start ]
  %alone = icmp eq i64 %started, 0
  br i1 %alone, label %inline, label %publish
inline:
  %inline.rc = call i64 @run_inline(ptr %pool, ptr %task, ptr %params, i64 %q, i64 %r,
                                    i64 %chunks, ptr %stop)
  br label %leave
publish:
  %job = getelementptr %Pool, ptr %pool, i64 0, i32 3
  store ptr %task, ptr %job
  %params.p = getelementptr %Job, ptr %job, i64 0, i32 1
  store ptr %params, ptr %params.p
  %q.p = getelementptr %Job, ptr %job, i64 0, i32 2
  store i64 %q, ptr %q.p
  %r.p = getelementptr %Job, ptr %job, i64 0, i32 3
  store i64 %r, ptr %r.p
  %chunks.p = getelementptr %Job, ptr %job, i64 0, i32 4
  store i64 %chunks, ptr %chunks.p
  %others = sub i64 %chunks, 1
  %seats = call i64 @llvm.umin.i64(i64 %others, i64 %started)
  %shares = add i64 %seats, 1
  %shares.p = getelementptr %Job, ptr %job, i64 0, i32 5
  store i64 %shares, ptr %shares.p
  call void @share_out(ptr %pool, i64 %shares, i64 %chunks)
  %state.p = getelementptr %Pool, ptr %pool, i64 0, i32 1
  %state.old = load atomic i64, ptr %state.p monotonic, align 8
  %generation = and i64 %state.old, -8589934592
  %generation.new = add i64 %generation, 8589934592
  %seats.bits = shl i64 %seats, 16
  %state.new = or i64 %generation.new, %seats.bits
  store atomic i64 %state.new, ptr %state.p seq_cst, align 8
  br label %wake
wake:
  %asleep = phi i1 [ true, %publish ], [ %asleep.still, %on ]
  br i1 %asleep, label %try, label %draw
try:
  %woken = call i1 @wake(ptr %pool, i64 %seats)
  %asleep.try = xor i1 %woken, true
  br label %draw
draw:
  %asleep.still = phi i1 [ false, %wake ], [ %asleep.try, %try ]
  %c = call i64 @draw(ptr %pool, i64 0, i64 %shares)
  %more = icmp sge i64 %c, 0
  br i1 %more, label %chunk, label %close
chunk:
  call void @run_chunk(ptr %task, ptr %params, i64 %q, i64 %r, i64 %chunks, i64 %c, i64 0)
  %cancelled = call i1 @is_over(ptr %pool, ptr %stop)
  br i1 %cancelled, label %cancel, label %on
on:
  br label %wake
cancel:
  call void @share_out(ptr %pool, i64 %shares, i64 0)
  br label %close
close:
  %state.closed = atomicrmw and ptr %state.p, i64 -4294901761 acquire
  br label %wait
wait:
  %state = phi i64 [ %state.closed, %close ], [ %state.again, %again ]
  %spins = phi i64 [ 0, %close ], [ %spins.next, %again ]
  %active = and i64 %state, 65535
  %idle = icmp eq i64 %active, 0
  br i1 %idle, label %leave, label %hold
hold:
  %spins.next = add i64 %spins, 1
  %long = icmp ugt i64 %spins, 250
  br i1 %long, label %yield, label %pause
yield:
  %yielded = call i32 @sched_yield()
  %over = call i1 @is_over(ptr %pool, ptr %stop)
  br i1 %over, label %cut, label %again
cut:                                              ; chunks that are drawn already end by themselves
  call void @share_out(ptr %pool, i64 %shares, i64 0)
  br label %again
pause:
  call void @relax()
  br label %again
again:
  %state.again = load atomic i64, ptr %state.p acquire, align 8
  br label %wait
leave:
  store atomic i64 0, ptr %busy.p release, align 8
  %result = load atomic i64, ptr %stop monotonic, align 8
  ret i64 %result
}

; The same for Python, as a launch of its own.
define i64 @ds_pool_run(ptr %pool, ptr %task, ptr %params, i64 %n, i64 %chunks) nounwind {
entry:
  %stop = alloca i64
  store i64 0, ptr %stop
  %raised = call i64 @ds_enter()
  %refused = icmp ne i64 %raised, 0
  br i1 %refused, label %out, label %go
go:
  %rc = call i64 @ds_parallel_for(ptr %pool, ptr %task, ptr %params, i64 %n, i64 %chunks, ptr %stop)
  call void @ds_leave()
  ret i64 %rc
out:
  ret i64 1
}

; Signal as many sleeping workers as there are seats; false if the mutex was taken: call it again.
define internal i1 @wake(ptr %pool, i64 %seats) nounwind {
entry:
  %sleepers.p = getelementptr %Pool, ptr %pool, i64 0, i32 2
  %sleepers = load atomic i64, ptr %sleepers.p seq_cst, align 8
  %none = icmp eq i64 %sleepers, 0
  br i1 %none, label %done, label %lock
lock:
  %mutex = getelementptr %Pool, ptr %pool, i64 0, i32 4
  %condition = getelementptr %Pool, ptr %pool, i64 0, i32 5
  %rc = call i32 @pthread_mutex_trylock(ptr %mutex)
  %locked = icmp eq i32 %rc, 0
  br i1 %locked, label %unlock, label %later
unlock:
  ; Signalling after the unlock spares the woken worker a wait for the mutex.
  %rc2 = call i32 @pthread_mutex_unlock(ptr %mutex)
  %all = icmp uge i64 %seats, %sleepers
  br i1 %all, label %broadcast, label %signal
broadcast:
  %rc3 = call i32 @pthread_cond_broadcast(ptr %condition)
  br label %done
signal:
  %i = phi i64 [ 0, %unlock ], [ %i.next, %signal ]
  %rc4 = call i32 @pthread_cond_signal(ptr %condition)
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %seats
  br i1 %more, label %signal, label %done
done:
  ret i1 true
later:
  ret i1 false
}

; The main function of a worker thread: spin, join a job, draw its chunks, leave; sleep when there is none.
define internal ptr @worker(ptr %self) nounwind {
entry:
  %pool = load ptr, ptr %self
  %index.p = getelementptr %Worker, ptr %self, i64 0, i32 1
  %index = load i64, ptr %index.p
  %state.p = getelementptr %Pool, ptr %pool, i64 0, i32 1
  %sleepers.p = getelementptr %Pool, ptr %pool, i64 0, i32 2
  %job = getelementptr %Pool, ptr %pool, i64 0, i32 3
  %mutex = getelementptr %Pool, ptr %pool, i64 0, i32 4
  %condition = getelementptr %Pool, ptr %pool, i64 0, i32 5
  %patience = load i64, ptr @SPIN
  br label %rest
rest:                                             ; `seen`: the last generation it took notice of
  %seen = phi i64 [ -1, %entry ], [ %generation, %missed ], [ %generation, %leave ], [ %seen, %up ]
  %time = call i64 @now()
  %deadline = add i64 %time, %patience
  br label %spin
spin:
  %spins = phi i64 [ 0, %rest ], [ %spins.next, %pause ], [ %spins.next, %clock ], [ 0, %join ]
  %state = load atomic i64, ptr %state.p monotonic, align 8
  %stop.bit = and i64 %state, 4294967296
  %stop = icmp ne i64 %stop.bit, 0
  br i1 %stop, label %out, label %look
look:
  %generation = lshr i64 %state, 33
  %new = icmp ne i64 %generation, %seen
  br i1 %new, label %seats, label %idle
seats:
  %seats.bits = and i64 %state, 4294901760
  %full = icmp eq i64 %seats.bits, 0
  br i1 %full, label %missed, label %join
missed:
  br label %rest
join:
  %joined = add i64 %state, -65535                ; one seat less, one active more
  %got = cmpxchg ptr %state.p, i64 %state, i64 %joined acquire monotonic
  %in = extractvalue { i64, i1 } %got, 1
  br i1 %in, label %work, label %spin
work:
  %task = load ptr, ptr %job
  %params.p = getelementptr %Job, ptr %job, i64 0, i32 1
  %params = load ptr, ptr %params.p
  %q.p = getelementptr %Job, ptr %job, i64 0, i32 2
  %q = load i64, ptr %q.p
  %r.p = getelementptr %Job, ptr %job, i64 0, i32 3
  %r = load i64, ptr %r.p
  %chunks.p = getelementptr %Job, ptr %job, i64 0, i32 4
  %chunks = load i64, ptr %chunks.p
  %shares.p = getelementptr %Job, ptr %job, i64 0, i32 5
  %shares = load i64, ptr %shares.p
  %own = urem i64 %index, %shares
  br label %draw
draw:
  %c = call i64 @draw(ptr %pool, i64 %own, i64 %shares)
  %more = icmp sge i64 %c, 0
  br i1 %more, label %chunk, label %leave
chunk:
  call void @run_chunk(ptr %task, ptr %params, i64 %q, i64 %r, i64 %chunks, i64 %c, i64 %index)
  br label %draw
leave:
  call void @ds_arena_release(ptr %pool, i64 %index, i64 0)    ; a launch that was stopped leaves some
  %left = atomicrmw sub ptr %state.p, i64 1 release
  br label %rest
idle:
  %spins.next = add i64 %spins, 1
  %sixteenth = and i64 %spins.next, 15
  %due = icmp eq i64 %sixteenth, 0
  br i1 %due, label %clock, label %pause
pause:
  call void @relax()
  br label %spin
clock:
  ; Waking up may have preempted the caller on this very core: let it go on.
  %yielded = call i32 @sched_yield()
  %time.now = call i64 @now()
  %tired = icmp sgt i64 %time.now, %deadline
  br i1 %tired, label %sleep, label %spin
sleep:
  %rc1 = call i32 @pthread_mutex_lock(ptr %mutex)
  %s1 = atomicrmw add ptr %sleepers.p, i64 1 seq_cst
  br label %again
again:
  %s = load atomic i64, ptr %state.p seq_cst, align 8
  %s.stop = and i64 %s, 4294967296
  %s.stopped = icmp ne i64 %s.stop, 0
  %s.generation = lshr i64 %s, 33
  %s.new = icmp ne i64 %s.generation, %seen
  %s.seats = and i64 %s, 4294901760
  %s.open = icmp ne i64 %s.seats, 0
  %s.job = and i1 %s.new, %s.open
  %s.up = or i1 %s.stopped, %s.job
  br i1 %s.up, label %up, label %wait
wait:
  %rc2 = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %again
up:
  %s2 = atomicrmw sub ptr %sleepers.p, i64 1 seq_cst
  %rc3 = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %rest
out:
  ret ptr null
}

; A task: bytes [begin, end) of the memory at the second address to the same place at the first.
define void @ds_copy(ptr %addresses, i64 %begin, i64 %end, i64 %chunk, i64 %worker) nounwind {
  %second = getelementptr ptr, ptr %addresses, i64 1
  %to = load ptr, ptr %addresses
  %of = load ptr, ptr %second
  %to.begin = getelementptr i8, ptr %to, i64 %begin
  %of.begin = getelementptr i8, ptr %of, i64 %begin
  %bytes = sub i64 %end, %begin
  call void @llvm.memcpy.p0.p0.i64(ptr %to.begin, ptr %of.begin, i64 %bytes, i1 false)
  ret void
}

; ---- Scratch arenas ----------------------------------------------------------------------------

; `bytes` of scratch memory for a worker, aligned to 64; null when out of memory. Only that worker
; (the calling thread for worker 0) may call this.
define ptr @ds_arena_alloc(ptr %pool, i64 %worker, i64 %bytes) nounwind {
entry:
  %block.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %worker, i32 2
  %cursor.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %worker, i32 3
  %end.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %worker, i32 4
  %absurd = icmp ugt i64 %bytes, 4611686018427387904
  br i1 %absurd, label %none, label %measure
measure:
  %up = add i64 %bytes, 63
  %rounded = and i64 %up, -64
  %size = call i64 @llvm.umax.i64(i64 %rounded, i64 64)
  %cursor = load i64, ptr %cursor.p
  %end = load i64, ptr %end.p
  %left = sub i64 %end, %cursor
  %fits = icmp ule i64 %size, %left
  br i1 %fits, label %bump, label %grow
bump:
  %cursor.new = add i64 %cursor, %size
  store i64 %cursor.new, ptr %cursor.p
  %result = inttoptr i64 %cursor to ptr
  ret ptr %result
grow:
  %block = call ptr @next_block(ptr %pool, i64 %worker, i64 %size)
  %failed = icmp eq ptr %block, null
  br i1 %failed, label %none, label %enter
enter:
  store ptr %block, ptr %block.p
  %payload.p = getelementptr %Block, ptr %block, i64 0, i32 1
  %payload = load i64, ptr %payload.p
  %payload.new = add i64 %payload, %size
  store i64 %payload.new, ptr %cursor.p
  %limit.p = getelementptr %Block, ptr %block, i64 0, i32 2
  %limit = load i64, ptr %limit.p
  store i64 %limit, ptr %end.p
  %grown = inttoptr i64 %payload to ptr
  ret ptr %grown
none:
  ret ptr null
}

; The first block after the current one that holds `size` bytes, or a new one at the list's end.
define internal ptr @next_block(ptr %pool, i64 %worker, i64 %size) noinline nounwind {
entry:
  %block.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %worker, i32 2
  %first.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %worker, i32 5
  %bytes.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %worker, i32 6
  %current = load ptr, ptr %block.p
  %empty = icmp eq ptr %current, null
  %link.first = select i1 %empty, ptr %first.p, ptr %current
  br label %walk
walk:                                             ; `link`: the place that points to the next block
  %link = phi ptr [ %link.first, %entry ], [ %b, %test ]
  %b = load ptr, ptr %link
  %last = icmp eq ptr %b, null
  br i1 %last, label %make, label %test
test:
  %payload.p = getelementptr %Block, ptr %b, i64 0, i32 1
  %payload = load i64, ptr %payload.p
  %limit.p = getelementptr %Block, ptr %b, i64 0, i32 2
  %limit = load i64, ptr %limit.p
  %capacity = sub i64 %limit, %payload
  %fits = icmp uge i64 %capacity, %size
  br i1 %fits, label %found, label %walk
found:
  ret ptr %b
make:
  ; As much as the arena has already: the number of blocks stays logarithmic.
  %total = load atomic i64, ptr %bytes.p monotonic, align 8
  %some = call i64 @llvm.umax.i64(i64 %total, i64 65536)
  %ample = call i64 @llvm.umax.i64(i64 %some, i64 %size)
  %ample.padded = add i64 %ample, 128
  %raw.ample = call ptr @malloc(i64 %ample.padded)
  %got = icmp ne ptr %raw.ample, null
  br i1 %got, label %fill, label %retry
retry:
  %tight.padded = add i64 %size, 128
  %raw.tight = call ptr @malloc(i64 %tight.padded)
  %got.tight = icmp ne ptr %raw.tight, null
  br i1 %got.tight, label %fill, label %none
fill:
  %raw = phi ptr [ %raw.ample, %make ], [ %raw.tight, %retry ]
  %length = phi i64 [ %ample, %make ], [ %size, %retry ]
  %address = ptrtoint ptr %raw to i64
  %after = add i64 %address, 87                   ; past the header, then up to a multiple of 64
  %data = and i64 %after, -64
  %stop = add i64 %data, %length
  store ptr null, ptr %raw
  %data.p = getelementptr %Block, ptr %raw, i64 0, i32 1
  store i64 %data, ptr %data.p
  %stop.p = getelementptr %Block, ptr %raw, i64 0, i32 2
  store i64 %stop, ptr %stop.p
  store ptr %raw, ptr %link
  %total.new = add i64 %total, %length
  store atomic i64 %total.new, ptr %bytes.p monotonic, align 8
  ret ptr %raw
none:
  ret ptr null
}

; The current position of a worker's arena: ds_arena_release takes it to free all later allocations.
define i64 @ds_arena_mark(ptr %pool, i64 %worker) nounwind {
  %cursor.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %worker, i32 3
  %cursor = load i64, ptr %cursor.p
  ret i64 %cursor
}

; Release to a mark; 0, the mark of an arena never used, frees everything in it. Blocks are kept for reuse.
define void @ds_arena_release(ptr %pool, i64 %worker, i64 %mark) nounwind {
entry:
  %block.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %worker, i32 2
  %cursor.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %worker, i32 3
  %end.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %worker, i32 4
  %first.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %worker, i32 5
  %current = load ptr, ptr %block.p
  %unused = icmp eq ptr %current, null
  br i1 %unused, label %done, label %here
here:                                             ; most often the mark is in the current block
  %first = load ptr, ptr %first.p
  %all = icmp eq i64 %mark, 0
  br i1 %all, label %restart, label %search
restart:
  %payload.first.p = getelementptr %Block, ptr %first, i64 0, i32 1
  %payload.first = load i64, ptr %payload.first.p
  br label %set
search:
  %b = phi ptr [ %current, %here ], [ %first, %elsewhere ], [ %b.next, %next ]
  %known = icmp eq ptr %b, %current
  %payload.p = getelementptr %Block, ptr %b, i64 0, i32 1
  %payload = load i64, ptr %payload.p
  %limit.p = getelementptr %Block, ptr %b, i64 0, i32 2
  %limit = load i64, ptr %limit.p
  %low = icmp uge i64 %mark, %payload
  %high = icmp ule i64 %mark, %limit
  %inside = and i1 %low, %high
  br i1 %inside, label %set, label %outside
outside:
  br i1 %known, label %elsewhere, label %next
elsewhere:                                        ; then it is in one of the blocks before it
  %lost = icmp eq ptr %first, %current
  br i1 %lost, label %done, label %search
next:
  %b.next = load ptr, ptr %b
  %beyond = icmp eq ptr %b.next, %current
  br i1 %beyond, label %done, label %search
set:
  %target = phi ptr [ %first, %restart ], [ %b, %search ]
  %to = phi i64 [ %payload.first, %restart ], [ %mark, %search ]
  store ptr %target, ptr %block.p
  store i64 %to, ptr %cursor.p
  %target.end.p = getelementptr %Block, ptr %target, i64 0, i32 2
  %target.end = load i64, ptr %target.end.p
  store i64 %target.end, ptr %end.p
  br label %done
done:
  ret void
}

; Bytes of all workers' blocks.
define i64 @ds_pool_scratch_bytes(ptr %pool) nounwind {
entry:
  %threads.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 1
  %threads = load i64, ptr %threads.p
  %arenas = shl i64 %threads, 1
  br label %worker
worker:
  %i = phi i64 [ 0, %entry ], [ %i.next, %worker ]
  %sum = phi i64 [ 0, %entry ], [ %sum.next, %worker ]
  %bytes.p = getelementptr %Pool, ptr %pool, i64 0, i32 6, i64 %i, i32 6
  %bytes = load atomic i64, ptr %bytes.p monotonic, align 8
  %sum.next = add i64 %sum, %bytes
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %arenas
  br i1 %more, label %worker, label %done
done:
  ret i64 %sum.next
}

; ---- Logs --------------------------------------------------------------------------------------
;
; A log is a list of blocks, in an arena of its worker's that nothing else uses, so that they stay
; valid when scratch memory is released. Its state is four words: where the next record goes, the end
; of the last block, the first block, the last one. A block begins with the next one's address and
; its own end; records follow.

; Append a block to a log; return the address of its first record, 0 when out of memory. Sizes double, so a
; log of n records has O(log n) blocks until they reach 64 KiB.
define i64 @ds_log_grow(ptr %pool, i64 %worker, ptr %state) noinline nounwind {
entry:
  %threads.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 1
  %threads = load i64, ptr %threads.p
  %arena = add i64 %worker, %threads
  %end.p = getelementptr i64, ptr %state, i64 1
  %first.p = getelementptr i64, ptr %state, i64 2
  %last.p = getelementptr i64, ptr %state, i64 3
  %last = load ptr, ptr %last.p
  %empty = icmp eq ptr %last, null
  br i1 %empty, label %make, label %more
more:                                             ; twice as long as the last block
  %last.begin = ptrtoint ptr %last to i64
  %last.end = load i64, ptr %end.p
  %length = sub i64 %last.end, %last.begin
  %twice = shl i64 %length, 1
  %most = call i64 @llvm.umin.i64(i64 %twice, i64 65536)
  br label %make
make:
  %size = phi i64 [ 1024, %entry ], [ %most, %more ]
  %link = phi ptr [ %first.p, %entry ], [ %last, %more ]
  %block = call ptr @ds_arena_alloc(ptr %pool, i64 %arena, i64 %size)
  %failed = icmp eq ptr %block, null
  br i1 %failed, label %none, label %enter
enter:
  %begin = ptrtoint ptr %block to i64
  %end = add i64 %begin, %size
  %cursor = add i64 %begin, 16
  %block.end.p = getelementptr i64, ptr %block, i64 1
  store ptr null, ptr %block
  store i64 %end, ptr %block.end.p
  store ptr %block, ptr %link
  store i64 %cursor, ptr %state
  store i64 %end, ptr %end.p
  store ptr %block, ptr %last.p
  ret i64 %cursor
none:
  ret i64 0
}

; Before the first log of a launch: what ds_log_release takes.
define i64 @ds_log_mark(ptr %pool) nounwind {
  %threads.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 1
  %threads = load i64, ptr %threads.p
  %mark = call i64 @ds_arena_mark(ptr %pool, i64 %threads)
  ret i64 %mark
}

; Free the logs of a launch. One that runs within a job of another (in a signal handler) has none but
; those of the calling thread.
define void @ds_log_release(ptr %pool, i64 %mark) nounwind {
entry:
  %threads.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 1
  %threads = load i64, ptr %threads.p
  call void @ds_arena_release(ptr %pool, i64 %threads, i64 %mark)
  %busy.p = getelementptr %Pool, ptr %pool, i64 0, i32 0, i32 4
  %busy = load atomic i64, ptr %busy.p monotonic, align 8
  %within = icmp ne i64 %busy, 0
  br i1 %within, label %done, label %next
next:
  %i = phi i64 [ 1, %entry ], [ %i.next, %free ]
  %more = icmp ult i64 %i, %threads
  br i1 %more, label %free, label %done
free:
  %arena = add i64 %threads, %i
  call void @ds_arena_release(ptr %pool, i64 %arena, i64 0)
  %i.next = add i64 %i, 1
  br label %next
done:
  ret void
}
