; Copies arrays whose axes are in another order in memory, tile by tile: a tile's rows are read as wholes into a
; buffer, and its columns are written as wholes, so that each cache line is read once and written once.
;
; An item is `w` bytes. For each slice: item a of row b of the target is item b of row a of the source.

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; A tile of `na` rows of the source, each of `nb` items; rows of the buffer are `side` items apart.
define internal void @tile(ptr noalias %to, ptr noalias %of, i64 %to.row, i64 %of.row, i64 %na, i64 %nb, i64 %w,
    i64 %side, ptr noalias %buffer) alwaysinline nounwind {
entry:
  %line = mul i64 %side, %w
  %bytes = mul i64 %nb, %w
  br label %read
read:
  %a = phi i64 [ 0, %entry ], [ %a.next, %read ]
  %r.to = mul i64 %a, %line
  %r.of = mul i64 %a, %of.row
  %r.to.p = getelementptr i8, ptr %buffer, i64 %r.to
  %r.of.p = getelementptr i8, ptr %of, i64 %r.of
  call void @llvm.memcpy.p0.p0.i64(ptr %r.to.p, ptr %r.of.p, i64 %bytes, i1 false)
  %a.next = add nuw i64 %a, 1
  %a.more = icmp ult i64 %a.next, %na
  br i1 %a.more, label %read, label %write, !llvm.loop !0
write:
  %b = phi i64 [ 0, %read ], [ %b.next, %write.end ]
  %w.to = mul i64 %b, %to.row
  %w.of = mul i64 %b, %w
  %w.to.p = getelementptr i8, ptr %to, i64 %w.to
  %w.of.p = getelementptr i8, ptr %buffer, i64 %w.of
  br label %item
item:
  %k = phi i64 [ 0, %write ], [ %k.next, %item ]
  %i.to = mul i64 %k, %w
  %i.of = mul i64 %k, %line
  %i.to.p = getelementptr i8, ptr %w.to.p, i64 %i.to
  %i.of.p = getelementptr i8, ptr %w.of.p, i64 %i.of
  call void @llvm.memcpy.p0.p0.i64(ptr %i.to.p, ptr %i.of.p, i64 %w, i1 false)
  %k.next = add nuw i64 %k, 1
  %k.more = icmp ult i64 %k.next, %na
  br i1 %k.more, label %item, label %write.end, !llvm.loop !1
write.end:
  %b.next = add nuw i64 %b, 1
  %b.more = icmp ult i64 %b.next, %nb
  br i1 %b.more, label %write, label %done, !llvm.loop !2
done:
  ret void
}

; One slice, of `na` rows of `nb` items of the source. 64 rows at a time: along them the processor prefetches.
define internal void @slice(ptr noalias %to, ptr noalias %of, i64 %to.row, i64 %of.row, i64 %na, i64 %nb, i64 %w,
    i64 %side, ptr noalias %buffer) alwaysinline nounwind {
entry:
  br label %band
band:
  %first = phi i64 [ 0, %entry ], [ %last, %band.end ]
  %first.64 = add i64 %first, 64
  %whole = icmp ult i64 %first.64, %na
  %last = select i1 %whole, i64 %first.64, i64 %na
  br label %column
column:
  %b = phi i64 [ 0, %band ], [ %b.next, %column.end ]
  %b.left = sub i64 %nb, %b
  %b.full = icmp uge i64 %b.left, %side
  %b.n = select i1 %b.full, i64 %side, i64 %b.left
  %b.to = mul i64 %b, %to.row
  %b.of = mul i64 %b, %w
  %b.to.p = getelementptr i8, ptr %to, i64 %b.to
  %b.of.p = getelementptr i8, ptr %of, i64 %b.of
  br label %row
row:
  %a = phi i64 [ %first, %column ], [ %a.next, %row ]
  %a.left = sub i64 %last, %a
  %a.full = icmp uge i64 %a.left, %side
  %a.n = select i1 %a.full, i64 %side, i64 %a.left
  %a.to = mul i64 %a, %w
  %a.of = mul i64 %a, %of.row
  %t.to = getelementptr i8, ptr %b.to.p, i64 %a.to
  %t.of = getelementptr i8, ptr %b.of.p, i64 %a.of
  call void @tile(ptr %t.to, ptr %t.of, i64 %to.row, i64 %of.row, i64 %a.n, i64 %b.n, i64 %w, i64 %side, ptr %buffer)
  %a.next = add nuw i64 %a, %a.n
  %a.more = icmp ult i64 %a.next, %last
  br i1 %a.more, label %row, label %column.end
column.end:
  %b.next = add nuw i64 %b, %b.n
  %b.more = icmp ult i64 %b.next, %nb
  br i1 %b.more, label %column, label %band.end
band.end:
  %more = icmp ult i64 %last, %na
  br i1 %more, label %band, label %done
done:
  ret void
}

; `count` slices, slice s at to + to.at[s] and of + of.at[s]. Items have up to 64 bytes; rows and counts are not 0.
define void @ds_transpose(ptr noalias %to, ptr noalias %of, i64 %to.row, i64 %of.row, i64 %na, i64 %nb, i64 %w,
    i64 %count, ptr %to.at, ptr %of.at) nounwind {
entry:
  %buffer = alloca [32768 x i8], align 64
  br label %next
next:
  %s = phi i64 [ 0, %entry ], [ %s.next, %end ]
  %to.at.p = getelementptr i64, ptr %to.at, i64 %s
  %of.at.p = getelementptr i64, ptr %of.at, i64 %s
  %to.s = load i64, ptr %to.at.p
  %of.s = load i64, ptr %of.at.p
  %t = getelementptr i8, ptr %to, i64 %to.s
  %o = getelementptr i8, ptr %of, i64 %of.s
  switch i64 %w, label %any [ i64 1, label %w1
    i64 2, label %w2
    i64 4, label %w4
    i64 8, label %w8
    i64 12, label %w12
    i64 16, label %w16 ]
w1:
  call void @slice(ptr %t, ptr %o, i64 %to.row, i64 %of.row, i64 %na, i64 %nb, i64 1, i64 64, ptr %buffer)
  br label %end
w2:
  call void @slice(ptr %t, ptr %o, i64 %to.row, i64 %of.row, i64 %na, i64 %nb, i64 2, i64 64, ptr %buffer)
  br label %end
w4:
  call void @slice(ptr %t, ptr %o, i64 %to.row, i64 %of.row, i64 %na, i64 %nb, i64 4, i64 64, ptr %buffer)
  br label %end
w8:
  call void @slice(ptr %t, ptr %o, i64 %to.row, i64 %of.row, i64 %na, i64 %nb, i64 8, i64 64, ptr %buffer)
  br label %end
w12:
  call void @slice(ptr %t, ptr %o, i64 %to.row, i64 %of.row, i64 %na, i64 %nb, i64 12, i64 32, ptr %buffer)
  br label %end
w16:
  call void @slice(ptr %t, ptr %o, i64 %to.row, i64 %of.row, i64 %na, i64 %nb, i64 16, i64 32, ptr %buffer)
  br label %end
any:
  call void @slice(ptr %t, ptr %o, i64 %to.row, i64 %of.row, i64 %na, i64 %nb, i64 %w, i64 16, ptr %buffer)
  br label %end
end:
  %s.next = add nuw i64 %s, 1
  %more = icmp ult i64 %s.next, %count
  br i1 %more, label %next, label %done
done:
  ret void
}

; Unrolled and vectorized loops take ten times as long to compile, and as long to run: memory is what is slow.
!0 = distinct !{!0, !3, !4}
!1 = distinct !{!1, !3, !4}
!2 = distinct !{!2, !3, !4}
!3 = !{!"llvm.loop.unroll.disable"}
!4 = !{!"llvm.loop.vectorize.enable", i1 false}
