// Command worker runs tasks of type http under the limits of a limits.yaml.
package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/limitsfile"
	"github.com/headway-go/headway/worker"
)

func main() {
	cli.RouteRedisLog(nil) // a worker routes it to its own
	os.Exit(run(cli.Interruptible(), os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

// run is the program. It ends when ctx does.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	p := program{embeddedAddr: cli.EmbeddedAddr, environ: os.Environ(), assemble: assemble}
	return p.run(ctx, args, getenv, stdout, stderr)
}

// program has what tests replace.
type program struct {
	embeddedAddr string
	environ      []string // NAME=VALUE, as os.Environ returns it
	assemble     func(*worker.Limits, options, *slog.Logger) (system, error)
}

func (p program) run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	return cli.Execute(ctx, p.command(getenv), args, getenv, stdout, stderr)
}

func (p program) command(getenv func(string) string) *cobra.Command {
	root, o := newWorker()
	root.RunE = func(c *cobra.Command, _ []string) error {
		if err := o.check(getenv); err != nil {
			return cli.Usage(err)
		}
		ctx, log := c.Context(), newLogger(c.ErrOrStderr(), o.logLevel, o.logFormat)
		cli.RouteRedisLog(log)
		for _, v := range cli.UnknownVariables(c, p.environ, tokenVariable, secretVariable) {
			log.WarnContext(ctx, "unknown environment variable: no flag has this name", "variable", v[0], "did_you_mean", v[1])
		}
		err := p.work(ctx, *o, log)
		if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil // stopped as asked, if only while starting
		}
		return err
	}
	root.AddCommand(newInspect(), newLimits(getenv), newTasks(getenv), newPage(), newServe(p, getenv), newHealth(getenv), newLeave())
	return root
}

// work runs tasks until ctx ends.
func (p program) work(ctx context.Context, o options, log *slog.Logger) error {
	file, err := limitsfile.Read(ctx, o.limits)
	if err != nil {
		return limitsUnread(o.limits, err)
	}
	schedules, err := loadSchedules(ctx, o.schedules, log)
	if err != nil {
		return err
	}
	prices, err := loadPrices(ctx, o.prices, log)
	if err != nil {
		return err
	}
	rdb, url, closeRedis, err := p.openRedis(ctx, o, log)
	if err != nil {
		return err
	}
	defer closeRedis()
	record, closeRecord, err := o.record.open(rdb, log)
	if err != nil {
		return err
	}
	defer closeRecord()
	host, _ := os.Hostname() // for the history alone
	limits, err := worker.New(rdb, worker.Config{
		File: file, App: o.app, Summary: cmp.Or(o.summary, -1), By: "worker on " + cmp.Or(host, "unknown"), OnMaxWait: o.patience, NoUsage: !o.usage, NoMetrics: true,
		Logger: log, Events: o.events, Record: record, Version: cli.Version(), ReloadOn: hangups(o.limits), ExplainRedis: func(err error) error { return cli.Explain(err, url) },
		Middleware: worker.MiddlewareConfig{FailUnknownTypes: true, RequireScope: true, MaxTimeout: o.maxTimeout, Prices: prices},
	})
	if err != nil {
		return err
	}
	h := &health{of: limits, started: time.Now(), version: cli.Version(), concurrency: o.concurrency, queues: o.queues}
	shown, closePage, err := workerPage(rdb, o, limits, schedules.Schedules)
	if err != nil {
		return err
	}
	defer closePage()
	status, err := o.listen.open(h, limits.MetricsHandler(), shown, log)
	if err != nil {
		return err
	}
	defer status.close()
	rules, err := limits.Preview(ctx)
	if err != nil {
		return explain(ctx, err, url)
	}
	warnOfMoney(ctx, prices, rules, log)
	runSchedules, err := newSchedules(rdb, schedules, rules, limits.Limiter(), o.app, o.outbound.AllowMethods, log)
	if err != nil {
		return err
	}
	sys, err := p.assemble(limits, o, limits.Logger())
	if err != nil {
		return explain(ctx, err, url)
	}
	if err := limits.Settle(ctx); err != nil { // last: it changes the limits of all workers
		return explain(ctx, err, url)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return serve(ctx, o, log, service{system: sys, limits: limits, health: h, status: status, schedules: runSchedules})
}

// hangups returns the signals that have a limits file read again. Without a file SIGHUP does what it does to any program.
func hangups(file string) <-chan os.Signal {
	if file == "" {
		return nil
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals
}

// openRedis connects to the Redis asked for, or starts the embedded one.
func (p program) openRedis(ctx context.Context, o options, log *slog.Logger) (rdb redis.UniversalClient, url string, closeRedis func(), err error) {
	closeServer := func() {}
	if url = o.redis; url == "embedded" {
		e, err := startEmbedded(p.embeddedAddr, log)
		if err != nil {
			return nil, "", nil, err
		}
		url, closeServer = e.url(), e.close
		log.WarnContext(ctx, "embedded Redis: nothing is kept on disk, and all tasks are lost when this worker stops; "+
			"give -redis URL for work that matters", "url", url)
	}
	if rdb, err = cli.OpenRedisFor(ctx, url, o.concurrency); err != nil {
		closeServer()
		return nil, "", nil, err
	}
	return rdb, url, func() { _ = rdb.Close(); closeServer() }, nil
}

// service is what goes on while tasks run.
type service struct {
	system    system
	limits    *worker.Limits
	health    *health
	status    *statusServer         // nil when off
	schedules func(context.Context) // enqueues recurring tasks until its context ends
}

// serve runs tasks until ctx ends, and then lets them end.
func serve(ctx context.Context, o options, log *slog.Logger, s service) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	beside, cancel := context.WithCancel(context.WithoutCancel(ctx)) // stays while tasks end
	defer cancel()
	if err := s.limits.Begin(ctx); err != nil {
		return err
	}
	defer s.limits.End()
	if s.status != nil {
		wg.Go(func() {
			if err := s.status.serve(); !errors.Is(err, http.ErrServerClosed) {
				log.ErrorContext(beside, "-listen ended", "error", err)
			}
		})
		defer s.status.close()
		log.InfoContext(ctx, "listening", "addr", s.status.addr(), "token", o.listen.token != "")
	}
	if len(o.queues) > manyQueues {
		log.WarnContext(ctx, "many queues: the worker looks into one after the other, which is slow", "queues", len(o.queues), "better", manyQueues)
	}
	pauses := make(chan os.Signal, 1)
	if len(pauseSignals) > 0 { // none would be all
		signal.Notify(pauses, pauseSignals...)
		defer signal.Stop(pauses)
	}
	if err := s.system.Start(); err != nil {
		return err
	}
	wg.Go(func() { s.schedules(ctx) })
	log.InfoContext(ctx, "ready", "queues", queueList(o.queues), "concurrency", o.concurrency, "version", s.health.version)
	for stopped := false; !stopped; {
		select {
		case <-pauses:
			s.health.stopping.Store(true)
			log.WarnContext(ctx, "no new tasks are taken, after SIGTSTP; running tasks go on. To take tasks again, end this worker with SIGTERM and start another")
			s.system.Stop()
		case <-ctx.Done():
			stopped = true
		}
	}
	began := time.Now()
	s.health.stopping.Store(true)
	log.InfoContext(ctx, "stopping: no new tasks, waiting for running tasks; a second signal kills", "cause", context.Cause(ctx))
	s.system.Shutdown()
	log.InfoContext(ctx, "stopped", "took_ms", time.Since(began).Milliseconds())
	return nil
}
