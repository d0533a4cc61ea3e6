"""The prefill runner: a Llama split over pipeline stages fills a KV cache, which a decode worker fetches.

A rank owns one stage: ``PrefillStage.load(…)``, then ``stage.run(chunk, tokens or hidden)``. The stage's
cache lies in its `KvPool` under a lease; `KvServer` hands it to whoever decodes (`DecodeWorker`), over TCP.
"""
