import sys, re, traceback, pathlib, tempfile, warnings
sys.path.insert(0,'/work/main')
import diffsim as ds, numpy as np, math
PRE="import math; import numpy as np; import diffsim as ds\n"
here=pathlib.Path(__file__).parent
def programs(path):
    text=path.read_text()
    for part in re.split(r"^=== ", text, flags=re.M)[1:]:
        name,_,body=part.partition("\n")
        head=""
        if "\n---\n" in body: head,_,body=body.partition("\n---\n")
        yield name,head,body.rstrip()+"\n"
def clean(body):
    out=[];mark=None
    for l in body.splitlines():
        if re.fullmatch(r"[ \t]*\^+",l): mark=(len(out)+1, l)
        else: out.append(l)
    return "\n".join(out)+"\n", mark
if __name__=="__main__":
    tmp=pathlib.Path(tempfile.mkdtemp())
    only=sys.argv[2:] 
    for k,(name,head,body) in enumerate(programs(here/"wrong"/sys.argv[1])):
        if only and not any(o in name for o in only): continue
        src,mark=clean(body)
        f=tmp/f"p{k}.py"; f.write_text(PRE+src)
        ds.init(arch=ds.cpu, offline_cache=False)
        print("===",name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                exec(compile(PRE+src,str(f),"exec"),{"__name__":"p"})
            print("   !!! NO ERROR")
        except ds.DiffsimError as e:
            flag=""
            if isinstance(e, ds.InternalError): flag+=" !!!INTERNAL"
            if not e.hint: flag+=" !!!NOHINT"
            if mark:
                line,caret=mark
                want="    "+src.splitlines()[line-1].strip()+"\n    "+caret[len(src.splitlines()[line-1])-len(src.splitlines()[line-1].lstrip()):]
                if want not in str(e): flag+=" !!!CARET"
            print(type(e).__name__+flag+":",str(e).replace(str(tmp),""))
            if isinstance(e, ds.InternalError): traceback.print_exc()
        except BaseException as e:
            print("   !!! RAW"); traceback.print_exc(limit=-4)
        sys.stdout.flush(); sys.stderr.flush()
    ds.reset()
