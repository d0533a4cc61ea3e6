"""A CUDA device that is not there, for tests of what runs on one.

Production code is unchanged and calls torch.cuda. `fake_cuda` puts the classes of this package in the place
of what it uses of torch.cuda. Tensors of the device are CPU tensors whose memory is registered as its own.

Values are computed at once, as on the CPU, so a missing wait cannot make them wrong. The order is judged
instead. Each stream, host thread and event counts which ops of each stream are done before it goes on (a
vector clock). The checker compares these counts at every use of memory: what it finds does not depend on
timing. A simulation of time alone would find a fault only in the runs in which it does harm. So virtual time
only rides along, for `Event.query`, `Event.elapsed_time`, and to show that copies run beside ops.

The checker reports four kinds of fault (tests.fake_cuda.memory.Kind). It sees torch's ops, and what the host
reads through torch or through `Gpu.host_reads`. It knows that one host thread waited for another by
threading.Condition (and so Event and Future), ThreadPoolExecutor.submit, Thread.start and Thread.join.

A pinned buffer has to outlive its copies, even where torch's own allocator would wait for them: here messages
are often views that torch does not know to be pinned memory. Not emulated: autograd's own threads (the thread
that calls `backward` runs it, on its current stream), CUDA graphs, NCCL beyond point to point.
"""
