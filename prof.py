import sys, subprocess, time, threading
sys.path.insert(0,'/tmp/wt/hot')
from benchmarks.qos.sites import running_paths
from benchmarks.qos.loops import closed_loop
path, qos, window = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
prof = len(sys.argv) > 4
with running_paths((path,), qos=qos) as sites:
    site = sites[path]
    procs=[]
    if prof:
        for name,pid in site.pids.items():
            if 'node' in name:
                procs.append(subprocess.Popen(['/tmp/pyspy/bin/py-spy','record','-d','5','-r','400','-f','raw','-o',f'/tmp/spy-{name.replace(" ","-")}.raw','-p',str(pid)],stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL))
    for i in range(3):
        m = closed_loop(site, qos=qos, window=window, clients=20, warmup_s=0.5, run_s=2.0)
        s=m.slice
        print(path, qos, window, f"{s.delivered/s.elapsed_s:,.0f}/s", {k: round(v/s.delivered/1000,2) for k,v in s.cpu_ns.items()}, f"ack {m.ack_median_s*1e3:.2f} p99 {m.ack_p99_s*1e3:.2f} ms", flush=True)
    for p in procs: p.wait()
