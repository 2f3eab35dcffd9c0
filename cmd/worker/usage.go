package main

// usage is what -h prints; testdata/help.golden holds the same text.
const usage = `Usage: worker [flags]
       worker inspect [flags] scope SCOPE | task ID    tell who waits, for what
       worker inspect usage SCOPE [flags]              tell who spent from it
       worker limits [flags] list | set SCOPE RULE KEY=VALUE… | …
                               show and change the limits while workers run
       worker health [flags]   ask a worker whether it takes tasks
       worker leave [flags]    give waiting tasks back their plain asynq form
       worker schema limits | schedules                print a JSON Schema
       worker completion bash | zsh | fish             complete commands, flags

Runs the tasks that enqueue puts into Redis, as fast as limits.yaml allows and
never faster. A task that is limited waits for its turn; it is not failed for
it, and not lost. Start as many workers on one Redis as you like: the limits
hold for all of them together.

This program runs tasks of type "http": one outbound request each. Tasks of
other types are run by Go programs that register handlers (package worker).

  worker -limits limits.yaml
  enqueue batch tasks.ndjson          # in another terminal

Flags:
  -redis URL        where tasks and limits are kept. Default: REDIS_URL from the
                    environment, else "embedded", a server inside this process
                    on 127.0.0.1:6390 that keeps nothing on disk: tasks are lost
                    when it stops. For work that matters, give a Redis 6.2 or
                    newer, or Valkey:
                      redis://[USER:PASSWORD@]HOST:PORT[/DB]  (rediss: TLS)
                      unix:///path/redis.sock
                      redis-sentinel://HOST:PORT,HOST:PORT/DB?master=NAME
                      redis+cluster://HOST:PORT?addr=HOST:PORT
                    In the environment a password stays out of the
                    process list.
  -limits FILE      the limits to keep. They are published in Redis, for all
                    workers and for enqueue: the newest file applies to all, and
                    what "worker limits" sets stands over it. The file is read
                    again when it changes, and on SIGHUP. Without it the worker
                    runs under the limits that are in Redis, where those of a
                    file alone stay for 24 hours after the last worker, and
                    without those it does not start.
  -schedules FILE   recurring tasks to enqueue when they come due. Give all
                    workers the same file: each run is enqueued once, however
                    many they are. enqueue schedules FILE shows the next runs.
                    Default: none
  -queues NAME=WEIGHT,…
                    the queues to work on, and how often each is looked at first
                    (weight 1 to 1000). Default: default=1
  -concurrency N    how many tasks run at once, 1 to 10000; up to half as many
                    more of other tenants while one tenant has more than half
                    of them. Default: 32
  -allow-host HOST[:PORT]
                    a host that tasks may call although its address is loopback,
                    private, link-local or this machine's own, which are refused
                    otherwise. Give it with its port, which is all that a task
                    then reaches. May be given more than once.
  -only-host HOST[:PORT]
                    a host that tasks may call; others are neither called nor
                    looked up then. Its address must be public nevertheless, or
                    its host be named by -allow-host too. May be given more than
                    once. Default: none, any host
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
                    what tasks may name as ${env:NAME} in header values, paths
                    and queries, and where it may be sent; file:PATH@HOST is
                    ${file:PATH}. May be given more than once. Default: none
  -listen ADDR      serve /healthz and /metrics (Prometheus) on ADDR, such as
                    :9090. Default: off. Without a host this is 127.0.0.1. Any
                    other address than loopback needs the environment variable
                    HEADWAY_LISTEN_TOKEN, of 16 characters or more; callers send
                    it as "Authorization: Bearer TOKEN".
  -usage            record in Redis who spends from which scope: see "worker
                    inspect usage". -usage=false records nothing. Default: true
  -app NAME         what this application is called there. Default: worker
  -max-timeout DURATION
                    how long a run may take, whatever the timeout of its task
                    is. Default: 10m
  -drain DURATION   when told to stop, how long running tasks are given until
                    they are put back to run again. Default: 0, as long as
                    -max-timeout
  -patience WHAT    what becomes of a task that has waited for its limits for
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

Stopping: SIGTERM or Ctrl-C takes no new task, lets those running finish, puts
waiting ones back and exits 0. A second signal exits at once with 130; what was
running then is run again, by this or another worker, within two minutes.
SIGTSTP (Ctrl-Z) takes no new task and lets those running go on until SIGTERM.

Exit codes: 0 stopped as told, 1 something failed, 2 bad usage, 130 killed.

Examples:
  worker -limits limits.yaml -allow-host localhost:8080
  REDIS_URL=redis://:secret@10.0.0.5:6379/0 worker -limits limits.yaml \
      -queues critical=6,default=3,low=1 -concurrency 100 -listen :9090
  curl localhost:9090/healthz
`
