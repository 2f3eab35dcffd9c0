package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/outbound"
)

const (
	prog           = "worker"
	maxConcurrency = 10000
)

// options is what the flags and the environment ask for, checked.
type options struct {
	redis       string // URL, or "embedded"
	limits      string // file; "" for the published policy
	schedules   string // file; "" for none
	queues      map[string]int
	concurrency int
	allowHosts  []string
	onlyHosts   []string
	denyCIDRs   []string
	secrets     []string // that tasks may name
	ports       []int
	methods     []string // that tasks may have besides the standard ones
	traces      bool     // whether a task's trace context goes with its request
	listen      listenAddr
	page        bool          // served beside /metrics
	pageUsers   string        // file; "" for who is on this machine
	maxTimeout  time.Duration // of a run
	drain       time.Duration
	patience    worker.MaxWaitPolicy // nil: wait on
	logLevel    slog.Level
	logFormat   string
	version     bool
	usage       bool
	app         string // that usage is recorded for
	summary     time.Duration
	events      worker.Events // nil: none

	fail func(error) // reports what went wrong
}

// given is what the flags say before it is checked.
type given struct {
	options
	queues, listen, patience, level string
	events                          givenEvents
}

// newWorker returns the program's command, and what it reads.
func newWorker() (*cli.Command, *given) {
	c, g := cli.NewCommand(prog, usage), &given{}
	c.Service, c.Commands = true, subcommands()
	fs, o := c.Flags, &g.options
	fs.StringVar(&o.redis, "redis", "", "")
	fs.StringVar(&g.queues, "queues", "default=1", "")
	fs.StringVar(&g.listen, "listen", "", "")
	cli.ChoiceVar(fs, &g.patience, "patience", "wait", "wait", "fail", "drop", "move=")
	cli.ChoiceVar(fs, &g.level, "log-level", "info", "debug", "info", "warn", "error")
	cli.ChoiceVar(fs, &o.logFormat, "log-format", "text", "text", "json")
	cli.FileVar(fs, &o.limits, "limits")
	cli.FileVar(fs, &o.schedules, "schedules")
	fs.BoolVar(&o.page, "page", false, "")
	cli.FileVar(fs, &o.pageUsers, "page-users")
	fs.IntVar(&o.concurrency, "concurrency", 32, "")
	cli.ListVar(fs, &o.allowHosts, "allow-host", nil)
	cli.ListVar(fs, &o.onlyHosts, "only-host", nil)
	cli.ListVar(fs, &o.denyCIDRs, "deny-cidr", nil)
	cli.ListVar(fs, &o.secrets, "secret", nil)
	fs.Func("ports", "", func(v string) (err error) {
		o.ports, err = parsePorts(v)
		return err
	})
	cli.AllowMethodFlag(fs, &o.methods)
	fs.BoolVar(&o.traces, "trace-context", false, "")
	fs.BoolVar(&g.events.log, "events", false, "")
	fs.StringVar(&g.events.webhook, "events-webhook", "", "")
	cli.FileVar(fs, &g.events.secretFile, "events-secret-file")
	fs.DurationVar(&o.maxTimeout, "max-timeout", cli.DefaultMaxTimeout, "")
	fs.DurationVar(&o.drain, "drain", 0, "")
	fs.BoolVar(&o.usage, "usage", true, "")
	fs.StringVar(&o.app, "app", "worker", "")
	fs.DurationVar(&o.summary, "summary", time.Minute, "")
	fs.BoolVar(&o.version, "version", false, "")
	return c, g
}

// parseOptions reads args. When done is true the program ends with code.
func parseOptions(args []string, getenv func(string) string, stdout, stderr io.Writer) (o options, code int, done bool) {
	c, g := newWorker()
	words, code, done := c.Parse(args, getenv, stdout, stderr)
	if done {
		return o, code, true
	}
	o = g.options
	o.fail = func(err error) { c.Fail(stderr, prog, err) }
	o.redis = cmp.Or(o.redis, "embedded")
	if o.drain == 0 {
		o.drain = o.maxTimeout // no run takes longer
	}
	var faults [8]error
	if len(words) > 0 {
		faults[0] = cli.Errorf("worker -h", "unexpected argument %q: worker takes flags, or inspect, limits, tasks, page, health, leave, schema or completion%s", words[0], cli.DidYouMean(words[0], "", subcommandNames()))
	}
	o.queues, faults[1] = parseQueues(g.queues)
	o.listen, faults[2] = parseListen(g.listen, strings.TrimSpace(getenv(tokenVariable)))
	if faults[2] == nil { // else the page would complain of the same address
		faults[7] = o.checkPage()
	}
	o.patience, faults[3] = parsePatience(g.patience)
	o.logLevel, faults[4] = parseLevel(g.level)
	faults[5] = o.checkRest()
	o.events, faults[6] = g.events.build(strings.TrimSpace(getenv(secretVariable)), o.allowHosts)
	if err := errors.Join(faults[:]...); err != nil {
		o.fail(err)
		return o, cli.ExitUsage, true
	}
	return o, cli.ExitOK, false
}

func (o options) checkRest() error {
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
	if o.logFormat != "text" && o.logFormat != "json" {
		faults = append(faults, cli.Errorf("-log-format text or -log-format json", "-log-format %q is unknown", o.logFormat))
	}
	if err := checkApp(o.app); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(append(faults, o.checkReach()...)...)
}

// checkPage refuses a page that nobody reaches, or that it is not known who may use.
func (o options) checkPage() error {
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

// outbound is the configuration of what carries out http tasks.
func (o options) outbound() outbound.Config {
	cfg := outbound.Config{AllowHosts: o.allowHosts, OnlyHosts: o.onlyHosts, DenyCIDRs: o.denyCIDRs, Ports: o.ports, AllowMethods: o.methods, Secrets: o.secrets}
	if o.traces {
		cfg.Headers = outbound.TraceContext
	}
	return cfg
}

// checkReach checks where tasks may go, a flag at a time, so that each fault names its own.
func (o options) checkReach() (faults []error) {
	for _, f := range []struct {
		flag, try string
		cfg       outbound.Config
	}{
		{"-allow-host", "-allow-host localhost:8080, once for each host", outbound.Config{AllowHosts: o.allowHosts}},
		{"-only-host", "-only-host api.example.com, once for each host", outbound.Config{OnlyHosts: o.onlyHosts}},
		{"-deny-cidr", "-deny-cidr 10.0.0.0/8, once for each range", outbound.Config{DenyCIDRs: o.denyCIDRs}},
		{"-secret", "-secret env:STRIPE_KEY@api.stripe.com, once for each secret and host", outbound.Config{Secrets: o.secrets}},
		{"-ports", "-ports 80,443", outbound.Config{Ports: o.ports}},
	} {
		if _, err := outbound.New(f.cfg); err != nil {
			what := f.flag + ": " + strings.ReplaceAll(err.Error(), "\n", "\n"+f.flag+": ")
			faults = append(faults, &cli.Error{What: strings.ReplaceAll(what, "outbound: ", ""), Try: f.try, Err: err})
		}
	}
	return faults
}

// parsePorts reads numbers with commas between them. Whether they are ports is
// checked with the rest.
func parsePorts(s string) (ports []int, err error) {
	for text := range strings.SplitSeq(s, ",") {
		port, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return nil, errors.New("not ports with commas between them, such as 80,443")
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// parsePatience reads what becomes of tasks that have waited for longer than max_wait.
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
			"-patience: %q is not a queue name: 1 to %d letters, digits, _, - and . are", to, maxQueueName)
	}
	return nil, cli.Errorf("-patience wait, fail, drop or move=QUEUE", "-patience %q is unknown", s)
}

func parseLevel(s string) (slog.Level, error) {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if strings.EqualFold(s, l.String()) {
			return l, nil
		}
	}
	return 0, cli.Errorf("-log-level debug, info, warn or error", "-log-level %q is unknown", s)
}

func newLogger(w io.Writer, o options) *slog.Logger {
	opts := &slog.HandlerOptions{Level: o.logLevel}
	if o.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// writeVersion prints what -version shows.
func writeVersion(w io.Writer) error {
	_, err := fmt.Fprintf(w, "worker %s\n", cli.Version())
	return err
}
