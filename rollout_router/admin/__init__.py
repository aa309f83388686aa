# SPDX-License-Identifier: Apache-2.0
"""The admin process: what is known of all workers and rollouts, over HTTP, in a process of its own.

It owns no claims and forwards nothing, and no call waits for it. It learns everything from the
store on disk and from each worker's private socket.

    changes, events, series, query, known   what is known: pure and synchronous
    watching, threads                       asks workers, life locks and the store, in threads
    access                                  who may ask, and change: pure
    app and its routes                      the HTTP API, with Server-Sent Events
    process                                 the process itself, as a supervisor or a command runs it
"""
