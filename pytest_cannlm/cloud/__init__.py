"""The other way to an answer: a scripted endpoint to test against, and the policy that decides when to go there.

``secret``    a text that is never shown
``detect``    which chip this is, before anything is loaded
``client``    one question to an OpenAI-compatible endpoint
``policy``    NPU first, the cloud where it is allowed, and always who answered
``script``    what the scripted endpoint does next
``questions`` requests, checked as OpenAI's API checks them
``answers``   what OpenAI's API answers, whole and streamed
``server``    HTTP on the loopback interface
``backend``   what stands behind it: key, script, memory of requests
``endpoint``  the scripted endpoint, as tests hold it
"""
