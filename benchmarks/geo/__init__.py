"""Parts of `bench_geo`: gateways of `geo`.

`lookup`    which broker a topic lives at, with 100,000 cells
`covering`  the filters of a city-sized circle
`sites`     brokers, gateways and plain nodes; emulated servers
`load`      the relay's clients, on topics that begin with cells
"""
