package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/outbound"
)

const maxConcurrency = 10000

// options is what the flags and the environment ask for. check fills in the second part.
type options struct {
	redis       string // URL, or "embedded"
	limits      string // file; "" for the published policy
	schedules   string // file; "" for none
	prices      string // likewise
	concurrency int
	outbound    outbound.Config // where tasks may go, and with which methods and secrets
	traces      bool            // whether a task's trace context goes with its request
	page        bool            // served beside /metrics
	pageUsers   string          // file; "" for all on this machine
	maxTimeout  time.Duration   // of a run
	drain       time.Duration
	logFormat   string
	usage       bool
	app         string // that usage is recorded for
	summary     time.Duration
	record      givenRecord
	given       struct {
		queues, listen, patience, level string
		events                          givenEvents
	}

	queues   map[string]int
	listen   listenAddr
	patience worker.MaxWaitPolicy // nil: wait on
	logLevel slog.Level
	events   worker.Events // nil: none
}

const workerLong = `worker runs the tasks that enqueue puts into Redis, as fast as limits.yaml allows and
never faster. A limited task waits for its turn. It does not fail, and is not lost.
Start as many workers on one Redis as you like: they share the limits.

This program runs tasks of type "http": one outbound request each. Go programs run
tasks of other types: they register handlers (package worker).

A flag may begin with one dash or two. [NAME] is the environment variable that is read
if the flag is not given. If a flag may be repeated, its variable holds a list with commas.

The forms of -redis are
  redis://[USER:PASSWORD@]HOST:PORT[/DB]  (rediss: TLS)
  unix:///path/redis.sock
  redis-sentinel://HOST:PORT,HOST:PORT/DB?master=NAME
  redis+cluster://HOST:PORT?addr=HOST:PORT
In the environment a password stays out of the process list. Redis 6.2 or newer, or Valkey.

On SIGTERM or Ctrl-C the worker takes no new task, finishes running ones, puts waiting
ones back and exits with 0. On a second signal it exits at once with 130, and the tasks
that were running run again within two minutes, in this or another worker. On SIGTSTP
(Ctrl-Z) it takes no new task, and running tasks go on until SIGTERM.

Exit codes of all commands: 0 done or stopped, 1 something failed, 2 bad usage,
130 interrupted.`

func newWorker() (*cobra.Command, *options) {
	o := &options{}
	c := &cobra.Command{
		Use: "worker", Short: "Run tasks under their limits", Long: workerLong, Version: cli.Version(), Args: cli.Args(0, 0),
		Example: `  worker -limits limits.yaml -allow-host localhost:8080
  REDIS_URL=redis://:secret@10.0.0.5:6379/0 worker -limits limits.yaml \
      -queues critical=6,default=3,low=1 -concurrency 100 -listen :9090`,
	}
	fs := c.Flags()
	fs.StringVar(&o.redis, "redis", "", "`URL` of the Redis that keeps tasks and limits. Default: REDIS_URL from the environment, else \"embedded\", a server "+
		"inside this process on 127.0.0.1:6390 that keeps nothing on disk: tasks are lost when it stops")
	fs.StringVar(&o.limits, "limits", "", "limits.yaml `FILE`. The worker publishes it in Redis, for all workers and for enqueue. The newest file applies "+
		"to all, and \"worker limits\" overrides it. It is read again when it changes, and on SIGHUP. Without a file the limits in Redis apply, and the "+
		"worker does not start if there are none. Limits of a file alone stay in Redis for 24 hours after the last worker")
	fs.StringVar(&o.schedules, "schedules", "", "`FILE` of recurring tasks, which are enqueued when they come due. Give all workers the same file: each run is "+
		"enqueued once")
	fs.StringVar(&o.prices, "prices", "", "`FILE` of what the tokens of language models cost. Tasks of scopes whose answers name their vendor are then charged in usd, too")
	fs.StringVar(&o.given.queues, "queues", "default=1", "queues to work on, `NAME=WEIGHT,…`: how often the worker looks into each first (weight 1 to 1000)")
	fs.IntVar(&o.concurrency, "concurrency", 32, "how many tasks run at once, 1 to 10000. While one tenant has more than half of them, tasks of other tenants "+
		"may run besides, up to half as many again")
	fs.StringArrayVar(&o.outbound.AllowHosts, "allow-host", nil, "`HOST[:PORT]` that tasks may call although its address is loopback, private, link-local or this machine's "+
		"own. May be repeated")
	fs.StringArrayVar(&o.outbound.OnlyHosts, "only-host", nil, "`HOST[:PORT]` that tasks may call. They then neither call nor look up any other. Its address must be public, "+
		"unless -allow-host names it too. May be repeated")
	fs.StringArrayVar(&o.outbound.DenyCIDRs, "deny-cidr", nil, "range of addresses that tasks never reach, a `CIDR`, whatever -allow-host and -only-host say. May be repeated")
	fs.IntSliceVar(&o.outbound.Ports, "ports", nil, "the only `PORTS` that tasks may call, such as 80,443, whatever -allow-host and -only-host say. Default: any")
	fs.StringArrayVar(&o.outbound.AllowMethods, "allow-method", nil, "`METHOD` that tasks may have besides GET, HEAD, POST, PUT, PATCH, DELETE and OPTIONS, such as PROPFIND. "+
		"CONNECT and TRACE are always refused. May be repeated. Give it to enqueue, too")
	fs.StringArrayVar(&o.outbound.Secrets, "secret", nil, "`env:NAME@HOST[:PORT]`: a secret that tasks may name as ${env:NAME} in header values, paths and queries, and the host "+
		"that may receive it. file:PATH@HOST is ${file:PATH}, and file:DIR/{member}@HOST or env:PREFIX_{member}@HOST is what {{secret .member}} of a header gets: the secret of the "+
		"pool's member that the task was granted. May be repeated")
	fs.BoolVar(&o.traces, "trace-context", false, "send the W3C trace context that a task carries on with its request")
	fs.StringVar(&o.given.listen, "listen", "", "serve /healthz and /metrics (Prometheus) on `ADDR`, such as :9090, on 127.0.0.1 if it names no host. Any address that is not "+
		"loopback needs the environment variable "+tokenVariable+", of 16 characters or more, which callers send as \"Authorization: Bearer TOKEN\"")
	fs.BoolVar(&o.page, "page", false, "serve the page of \"worker page\" there too, under /page/. On this machine every visitor is an admin there")
	fs.StringVar(&o.pageUsers, "page-users", "", "`FILE` of the users of that page, as the -users of \"worker page\". Needed if other machines reach -listen, or "+tokenVariable+" is set")
	fs.BoolVar(&o.given.events.log, "events", false, "log events: a quota that is half used, nearly used or exhausted, a pause or a cut by an API, waiting tasks that are not "+
		"dispatched, workers with different limits")
	fs.StringVar(&o.given.events.webhook, "events-webhook", "", "send each event there, too, as JSON: an https `URL`, or http to this machine. A private address needs -allow-host. "+
		"The secret that signs the requests is in the environment variable "+secretVariable+", of 16 characters or more")
	fs.StringVar(&o.given.events.secretFile, "events-secret-file", "", "`FILE` with that secret instead")
	o.record.flags(fs)
	fs.BoolVar(&o.usage, "usage", true, "record in Redis which application spends from which scope, for \"worker inspect usage\"")
	fs.StringVar(&o.app, "app", "worker", "`NAME` of this application in that record, and in the apps of limits.yaml")
	cli.DurationVar(fs, &o.maxTimeout, "max-timeout", cli.DefaultMaxTimeout, "how long a run may take, whatever the timeout of its task is")
	cli.DurationVar(fs, &o.drain, "drain", 0, "how long running tasks may go on after SIGTERM or Ctrl-C. Then they are put back, to run again. Default: as long as -max-timeout")
	cli.ChoiceVar(c, &o.given.patience, "patience", "wait", "`WHAT` happens to a task that has waited for its limits for longer than its max_wait, or a rule's: wait (it waits on), "+
		"fail (it is archived with the reason), drop (it ends, with a line in the log), move=QUEUE (it goes to workers of that queue)", "wait", "fail", "drop", "move=")
	cli.DurationVar(fs, &o.summary, "summary", time.Minute, "how often the log says, at level info, what tasks have done since; 0 for never")
	logFlags(c, &o.given.level, &o.logFormat)
	return c, o
}

// logFlags adds the flags of a command that logs.
func logFlags(c *cobra.Command, level, format *string) {
	cli.ChoiceVar(c, level, "log-level", "info", "`LEVEL` of the log: debug, info, warn or error", "debug", "info", "warn", "error")
	cli.ChoiceVar(c, format, "log-format", "text", "`FORM` of the log, on stderr: text or json", "text", "json")
}

// check reads what the flags say. Its error has all faults.
func (o *options) check(getenv func(string) string) error {
	o.redis = cmp.Or(o.redis, "embedded")
	o.drain = cmp.Or(o.drain, o.maxTimeout) // no run takes longer
	if o.traces {
		o.outbound.Headers = outbound.TraceContext
	}
	var faults [8]error
	o.queues, faults[0] = parseQueues(o.given.queues)
	o.listen, faults[1] = parseListen(o.given.listen, strings.TrimSpace(getenv(tokenVariable)))
	if faults[1] == nil { // else the page would complain of the same address
		faults[2] = o.checkPage()
	}
	o.patience, faults[3] = parsePatience(o.given.patience)
	o.logLevel, faults[4] = parseLog(o.given.level, o.logFormat)
	faults[5] = o.checkRest()
	o.events, faults[6] = o.given.events.build(strings.TrimSpace(getenv(secretVariable)), o.outbound.AllowHosts)
	faults[7] = o.record.check()
	return errors.Join(faults[:]...)
}

func (o *options) checkRest() error {
	var faults []error
	if o.concurrency < 1 || o.concurrency > maxConcurrency {
		faults = append(faults, cli.Errorf("-concurrency 32", "-concurrency %d is not from 1 to %d", o.concurrency, maxConcurrency))
	}
	if o.maxTimeout <= 0 {
		faults = append(faults, cli.Errorf("-max-timeout 10m", "-max-timeout %s is not above 0", o.maxTimeout))
	}
	if o.drain < 0 {
		faults = append(faults, cli.Errorf("-drain 30s, or 0 for as long as -max-timeout", "-drain %s is below 0", o.drain))
	}
	if o.summary != 0 && o.summary < time.Second {
		faults = append(faults, cli.Errorf("-summary 1m, or 0 for none", "-summary %s is below 1s", o.summary))
	}
	if err := usage.CheckApp(o.app); err != nil {
		faults = append(faults, cli.Errorf("-app billing", "-app: %s", strings.TrimPrefix(err.Error(), "usage: ")))
	}
	return errors.Join(append(faults, o.checkReach()...)...)
}

// checkPage refuses a page that cannot be reached, or that lacks a list of users.
func (o *options) checkPage() error {
	switch {
	case !o.page && o.pageUsers != "":
		return cli.Errorf("-page -page-users users.yaml", "-page-users needs -page")
	case !o.page:
		return nil
	case o.listen.addr == "":
		return cli.Errorf("-page -listen :9090", "-page needs -listen")
	case o.pageUsers == "" && !o.listen.loopback:
		return cli.Errorf("-page-users users.yaml, or -listen :9090 for this machine only", "-page can be reached by other machines, and -page-users does not say who may")
	case o.pageUsers == "" && o.listen.token != "":
		return cli.Errorf("-page-users users.yaml", "%s is set, so that not everybody on this machine may ask, and -page-users does not say who may", tokenVariable)
	}
	return nil
}

// checkReach checks where tasks may go, one flag at a time, so that each fault names its flag.
func (o *options) checkReach() (faults []error) {
	for _, f := range []struct {
		flag, try string
		cfg       outbound.Config
	}{
		{"-allow-host", "-allow-host localhost:8080, once for each host", outbound.Config{AllowHosts: o.outbound.AllowHosts}},
		{"-only-host", "-only-host api.example.com, once for each host", outbound.Config{OnlyHosts: o.outbound.OnlyHosts}},
		{"-deny-cidr", "-deny-cidr 10.0.0.0/8, once for each range", outbound.Config{DenyCIDRs: o.outbound.DenyCIDRs}},
		{"-secret", "-secret env:STRIPE_KEY@api.stripe.com, once for each secret and host", outbound.Config{Secrets: o.outbound.Secrets}},
		{"-ports", "-ports 80,443", outbound.Config{Ports: o.outbound.Ports}},
		{"-allow-method", "-allow-method PROPFIND, once for each method", outbound.Config{AllowMethods: o.outbound.AllowMethods}},
	} {
		if _, err := outbound.New(f.cfg); err != nil {
			what := f.flag + ": " + strings.ReplaceAll(err.Error(), "\n", "\n"+f.flag+": ")
			faults = append(faults, &cli.Error{What: strings.ReplaceAll(what, "outbound: ", ""), Try: f.try, Err: err})
		}
	}
	return faults
}

func parsePatience(s string) (worker.MaxWaitPolicy, error) {
	to, moves := strings.CutPrefix(s, "move=")
	switch {
	case s == "wait":
		return nil, nil
	case s == "fail":
		return worker.Fail(), nil
	case s == "drop":
		return worker.Drop(nil), nil
	case moves && validQueue(to):
		return worker.MoveTo(to), nil
	case moves:
		return nil, cli.Errorf("-patience move=slow",
			"-patience: %q is not a queue name: 1 to 128 letters, digits, _, - and . are", to)
	}
	return nil, cli.Errorf("-patience wait, fail, drop or move=QUEUE", "-patience %q is unknown", s)
}

func parseLog(level, format string) (l slog.Level, err error) {
	if l.UnmarshalText([]byte(level)) != nil {
		err = cli.Errorf("-log-level debug, info, warn or error", "-log-level %q is unknown", level)
	}
	if format != "text" && format != "json" {
		err = errors.Join(err, cli.Errorf("-log-format text or -log-format json", "-log-format %q is unknown", format))
	}
	return l, err
}

func newLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

const (
	// maxWeight bounds a list that asynq shuffles for each task: it has each queue as often as its weight.
	maxWeight = 1000
	// manyQueues is where looking for a task gets slow: asynq asks one queue after the other.
	manyQueues = 20

	tryQueues = "-queues critical=6,default=3,low=1"
)

// parseQueues reads NAME=WEIGHT,… and reports every fault.
func parseQueues(s string) (map[string]int, error) {
	queues := make(map[string]int)
	var faults []error
	for part := range strings.SplitSeq(s, ",") {
		name, weight, err := parseQueue(strings.TrimSpace(part))
		switch _, twice := queues[name]; {
		case err != nil:
			faults = append(faults, err)
		case twice:
			faults = append(faults, cli.Errorf(tryQueues, "-queues names %q twice", name))
		default:
			queues[name] = weight
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return queues, nil
}

func parseQueue(part string) (string, int, error) {
	name, digits, found := strings.Cut(part, "=")
	switch {
	case part == "":
		return "", 0, cli.Errorf(tryQueues, "-queues has an empty entry")
	case !found:
		return "", 0, cli.Errorf(fmt.Sprintf("-queues %s=1", part), "-queues: %q has no weight", part)
	case !validQueue(name):
		return "", 0, cli.Errorf(tryQueues,
			"-queues: %q is not a queue name: 1 to 128 letters, digits, _, - and . are", name)
	}
	weight, err := strconv.Atoi(digits)
	if err != nil || weight < 1 || weight > maxWeight {
		return "", 0, cli.Errorf(tryQueues, "-queues: the weight of %q is %q, not a whole number from 1 to %d", name, digits, maxWeight)
	}
	return name, weight, nil
}

// queueName matches what asynq and the command line take as the name of a queue.
var queueName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

func validQueue(name string) bool { return queueName.MatchString(name) }

// queueList names the queues with their weights, in order, for people.
func queueList(queues map[string]int) string {
	list := make([]string, 0, len(queues))
	for name, weight := range queues {
		list = append(list, fmt.Sprintf("%s=%d", name, weight))
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}
