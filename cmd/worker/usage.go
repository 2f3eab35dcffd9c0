package main

// usage is what -h prints; testdata/help.golden holds the same text.
const usage = `Usage: worker [flags]
       worker inspect [flags] scope SCOPE | task ID    show who waits, for what
       worker inspect usage SCOPE [flags]              show who spent from it
       worker limits [flags] list | set SCOPE RULE KEY=VALUE… | …
                               show and change the limits while workers run
       worker tasks run | move | cancel | priority ID… | -scope SCOPE
                               start next, move or cancel tasks that wait
       worker page [flags]     serve a page that shows and steers all of it
       worker health [flags]   ask a worker whether it takes tasks
       worker leave [flags]    return waiting tasks to their plain asynq form
       worker schema limits | schedules                print a JSON Schema
       worker completion bash | zsh | fish             complete commands, flags

Runs the tasks that enqueue puts into Redis, as fast as limits.yaml allows and
never faster. A limited task waits for its turn. It does not fail, and is not
lost. Start as many workers on one Redis as you like: they share the limits.

This program runs tasks of type "http": one outbound request each. Go programs
run tasks of other types: they register handlers (package worker).

  worker -limits limits.yaml
  enqueue batch tasks.ndjson          # in another terminal

Flags:
  -redis URL        where tasks and limits are kept. Default: REDIS_URL from the
                    environment, else "embedded", a server inside this process
                    on 127.0.0.1:6390 that keeps nothing on disk: tasks are lost
                    when it stops. For work that matters, use Redis 6.2 or
                    newer, or Valkey:
                      redis://[USER:PASSWORD@]HOST:PORT[/DB]  (rediss: TLS)
                      unix:///path/redis.sock
                      redis-sentinel://HOST:PORT,HOST:PORT/DB?master=NAME
                      redis+cluster://HOST:PORT?addr=HOST:PORT
                    In the environment a password stays out of the
                    process list.
  -limits FILE      the limits to keep. The worker publishes them in Redis, for
                    all workers and for enqueue. The newest file applies to all,
                    and "worker limits" overrides it. The worker reads the file
                    again when it changes, and on SIGHUP. Without a file it runs
                    under the limits in Redis, and does not start if there are
                    none.
  -schedules FILE   recurring tasks to enqueue when they come due. Give all
                    workers the same file: each run is enqueued once, whatever
                    their number. enqueue schedules FILE shows the next runs.
                    Default: none
  -queues NAME=WEIGHT,…
                    the queues to work on, and how often the worker looks into
                    each first (weight 1 to 1000). Default: default=1
  -concurrency N    how many tasks run at once, 1 to 10000. While one tenant has
                    more than half of them, tasks of other tenants may run
                    besides, up to half as many again. Default: 32
  -allow-host HOST[:PORT]
                    a host that tasks may call although its address is loopback,
                    private, link-local or this machine's own. Without it such
                    addresses are refused. With a port, tasks reach that port
                    alone. May be given more than once.
  -only-host HOST[:PORT]
                    a host that tasks may call. Tasks then neither call nor look
                    up any other host. Its address must be public, unless
                    -allow-host names it too. May be given more than once.
                    Default: none, any host
  -deny-cidr CIDR   a range of addresses that tasks never reach, such as
                    2001:db8::/32, whatever -allow-host and -only-host say. May
                    be given more than once. Default: none
  -ports LIST       the ports that tasks may call, such as 80,443, whatever
                    -allow-host and -only-host say. Default: none, any port
  -allow-method NAME
                    a method that tasks may have besides GET, HEAD, POST, PUT,
                    PATCH, DELETE and OPTIONS, such as PROPFIND. CONNECT and
                    TRACE are always refused. May be given more than once. Give
                    it to enqueue, too.
  -secret env:NAME@HOST[:PORT]
                    a secret that tasks may name as ${env:NAME} in header
                    values, paths and queries, and the host that may receive
                    it. file:PATH@HOST is ${file:PATH}. May be given more than
                    once. Default: none
  -trace-context    send the W3C trace context that a task carries, in its task
                    headers traceparent and tracestate, on with its request.
                    Default: false
  -listen ADDR      serve /healthz and /metrics (Prometheus) on ADDR, such as
                    :9090. Default: off. Without a host this is 127.0.0.1. Any
                    other address than loopback needs the environment variable
                    HEADWAY_LISTEN_TOKEN, of 16 characters or more. Callers send
                    it as "Authorization: Bearer TOKEN".
  -page             serve the page of "worker page" on that address too, under
                    /page/. On this machine everybody is an admin there
  -page-users FILE  who may use it, as the -users of "worker page". Needed if
                    other machines reach -listen, or HEADWAY_LISTEN_TOKEN is set
  -events           log events: a quota that is half used, nearly used or
                    exhausted, a pause or a cut by an API, waiting tasks that
                    are not dispatched, workers with different limits. Default:
                    false
  -events-webhook URL
                    send each event there, too, as JSON. https, or http to this
                    machine. A private address needs -allow-host. The secret
                    that signs the requests is in the environment variable
                    HEADWAY_EVENTS_SECRET, of 16 characters or more. Default:
                    none
  -events-secret-file FILE
                    a file with that secret instead. Default: none
  -usage            record in Redis who spends from which scope, for "worker
                    inspect usage". -usage=false records nothing. Default: true
  -app NAME         the name of this application in that record, and in the
                    apps of limits.yaml. Default: worker
  -max-timeout DURATION
                    how long a run may take, whatever the timeout of its task
                    is. Default: 10m
  -drain DURATION   how long running tasks may go on after SIGTERM or Ctrl-C.
                    Then they are put back, to run again. Default: 0, as long as
                    -max-timeout
  -patience WHAT    what happens to a task that has waited for its limits for
                    longer than its max_wait, or a rule's: wait (it waits on),
                    fail (it is archived with the reason), drop (it ends, with a
                    line in the log), move=QUEUE (it goes to workers of that
                    queue). Default: wait
  -log-level LEVEL  debug, info, warn or error. Default: info
  -log-format FORM  text or json, on stderr. Default: text
  -summary DURATION how often the log says, at level info, what tasks have done
                    since; 0 for never. Default: 1m
  -version          print the version
  -h                print this

Stopping: on SIGTERM or Ctrl-C the worker takes no new task, finishes running
ones, puts waiting ones back and exits with 0. On a second signal it exits at
once with 130, and the tasks that were running run again within two minutes, in
this or another worker. On SIGTSTP (Ctrl-Z) it takes no new task, and running
tasks go on until SIGTERM.

Exit codes: 0 stopped by a signal, 1 something failed, 2 bad usage, 130 killed.

Examples:
  worker -limits limits.yaml -allow-host localhost:8080
  REDIS_URL=redis://:secret@10.0.0.5:6379/0 worker -limits limits.yaml \
      -queues critical=6,default=3,low=1 -concurrency 100 -listen :9090
  curl localhost:9090/healthz
`
