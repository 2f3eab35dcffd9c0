package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/limitsfile"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker/internal/asynqread"
	"github.com/headway-go/headway/worker/internal/ratelog"
	"github.com/headway-go/headway/worker/internal/redishealth"
	"github.com/headway-go/headway/worker/metrics"
)

// readBound is how long New waits while a limits file keeps changing.
const readBound = 30 * time.Second

// Config configures New. The zero Config works if Redis already has limits, published by another
// process or set with the command line.
type Config struct {
	// LimitsFile is the path of a limits.yaml. It is published for all processes when the first server
	// starts, and again after each change. Defaults to none: the limits in Redis apply.
	LimitsFile string
	// Limits are limits from Go values instead of a file, published in the same way. Defaults to none.
	Limits *policy.Policy
	// File is a limits file that limitsfile.Read has returned, instead of LimitsFile.
	File limitsfile.File
	// By names this process in the history of the limits. Defaults to the names of the program and the host: billing on web-3.
	By string
	// App names this application, for limits that list the applications that may spend from them, and
	// for usage. Defaults to none, and for usage to the program's name.
	App string
	// Spends and Costs return what tasks spend whose headers do not say it: see MiddlewareConfig.
	Spends func(*asynq.Task) (scope string, cost int64)
	Costs  func(*asynq.Task) policy.Costs
	// OnMaxWait decides what happens to a task that has waited too long. Defaults to none: it waits on.
	OnMaxWait MaxWaitPolicy
	// Logger receives the log. Defaults to slog.Default.
	Logger *slog.Logger
	// Registerer is where the metrics of docs/metrics.md are registered. Defaults to prometheus.DefaultRegisterer.
	Registerer prometheus.Registerer
	// NoMetrics registers no metrics, and NoUsage records no usage.
	NoMetrics, NoUsage bool
	// Events reports thresholds of limits, pauses and cuts by APIs, a process that does not dispatch, and
	// processes with different limits, while a server runs: what events.New returns. Defaults to none.
	Events Events
	// Record records what tasks want and get while a server runs, for a replay under other limits: what demand.NewRecorder returns. It
	// serves one New. Defaults to none.
	Record *demand.Recorder
	// Summary is the interval of a log line, at level info, with the number of tasks that were picked up, ran, failed and were
	// put back since the previous line, and of those that wait. An interval in which nothing happened has no line. A line costs
	// three Redis commands for each queue. Defaults to a minute; a negative interval turns it off.
	Summary time.Duration
	// ReloadOn rereads the file at each signal, changed or not. Defaults to SIGHUP while a Server of New is in Run.
	ReloadOn <-chan os.Signal
	// ExplainRedis translates an error of Redis for the log and RedisErr. Defaults to the error itself.
	ExplainRedis func(error) error
	// Version is the version label of headway_build_info. Defaults to none, and then that metric is absent.
	Version string
	// TraceID returns the id of the trace that a context belongs to, "" for none, as oteltask.TraceID does: histograms have it as
	// an exemplar. Defaults to the trace in which the task was enqueued, by its header traceparent.
	TraceID func(context.Context) string
	// Throttle configures the limiter. New sets its App, Observer, OnShadow and Logger, and OnSpent unless
	// NoUsage is set. Its Prefix is the prefix of all keys.
	Throttle throttle.Config
	// Middleware configures how tasks are handled. New sets its Redis, Limiter, Usage, and all fields
	// that Config has too. Its Observer is called in addition to the metrics.
	Middleware MiddlewareConfig
}

// Limits keeps the limits of one process, for any number of servers: see New. It is safe for concurrent use.
type Limits struct {
	*Middleware
	cfg     Config
	log     *slog.Logger
	rdb     redis.UniversalClient
	owned   bool // End closes rdb
	metrics *metrics.Metrics
	usage   *usage.Recorder // nil if it is off
	health  *redishealth.Watch
	source  *limitsfile.Source
	reloads chan os.Signal // by Run

	summary  summary
	running  atomic.Bool     // between Begin and End
	failures ratelog.Repeats // log lines of tasks that are retried, by scope

	mu      sync.Mutex
	begun   int // calls of Begin less calls of End
	settled bool
	faults  sync.Mutex
	fault   error // why the limits in Redis are not in force
	ofFile  error // why the limits file cannot be used
	end     context.CancelFunc
	beside  *sync.WaitGroup // goroutines beside the servers
}

// New returns the Limits of a process: all that cmd/worker needs to keep limits. conn is the Redis of
// asynq's tasks: an asynq.RedisConnOpt, or a go-redis client, which the caller closes.
//
//	limits, err := worker.New(asynq.RedisClientOpt{Addr: "localhost:6379"}, worker.Config{LimitsFile: "limits.yaml"})
//	err = limits.NewServer(asynq.Config{Concurrency: 32}).Run(mux) // any asynq.Handler
//
// While a server runs, the file is published and read again when it changes. The limiter follows live changes in Redis. A Redis
// that was emptied gets the file back. Usage and metrics are recorded. An outage is logged once. New reads the file and does no
// other I/O. The error names what is wrong with the file or the Config.
func New(conn any, cfg Config) (*Limits, error) {
	l := &Limits{cfg: cfg, log: cmp.Or(cfg.Logger, slog.Default()), reloads: make(chan os.Signal, 1)}
	l.cfg.Registerer = cmp.Or(cfg.Registerer, prometheus.DefaultRegisterer)
	if err := l.connect(conn); err != nil {
		return nil, err
	}
	file, err := limitsOf(cfg)
	if err == nil {
		err = l.build(file)
	}
	if err == nil {
		return l, nil
	}
	if l.owned {
		_ = l.rdb.Close()
	}
	return nil, err
}

func (l *Limits) connect(conn any) error {
	switch conn := conn.(type) {
	case redis.UniversalClient:
		l.rdb = conn
	case asynq.RedisConnOpt:
		l.rdb, l.owned = conn.MakeRedisClient().(redis.UniversalClient)
	}
	if l.rdb == nil {
		return fmt.Errorf("worker: New needs an asynq.RedisConnOpt or a go-redis client, got %T", conn)
	}
	return nil
}

// limitsOf reads the limits that a process publishes.
func limitsOf(cfg Config) (limitsfile.File, error) {
	switch {
	case cfg.LimitsFile != "" && cfg.Limits != nil:
		return limitsfile.File{}, errors.New("worker: Config has both LimitsFile and Limits; give one of them")
	case cfg.File.Policy() != nil:
		return cfg.File, nil
	case cfg.Limits != nil:
		return limitsfile.Of("Config.Limits", cfg.Limits), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), readBound)
	defer cancel()
	file, err := limitsfile.Read(ctx, cfg.LimitsFile)
	if err != nil {
		return file, fmt.Errorf("worker: LimitsFile: %w", err)
	}
	return file, nil
}

// build creates the parts and connects them.
func (l *Limits) build(file limitsfile.File) error {
	inspector := asynq.NewInspectorFromRedisClient(l.rdb)
	l.metrics = metrics.New(metrics.Config{Version: l.cfg.Version, Snapshot: l.snapshot, TraceID: l.traceID})
	l.health = redishealth.New(redishealth.Config{
		Ping: redishealth.Ping(l.rdb), Explain: l.cfg.ExplainRedis, Up: l.metrics.RedisUp, Logger: l.log,
		Count: func() (int, error) {
			servers, err := inspector.Servers()
			return len(servers), err
		},
	})
	calm := l.health.Calm(l.log)
	l.source = limitsfile.New(l.rdb, file, limitsfile.Config{By: l.cfg.By, App: l.cfg.App, Worker: true, Prefix: l.cfg.Throttle.Prefix, Logger: l.log, OnFault: l.fileFault, OnVersion: l.metrics.PolicyInForce})
	if !l.cfg.NoUsage {
		recorder, err := usage.New(l.rdb, usage.Config{Prefix: l.cfg.Throttle.Prefix, App: cmp.Or(l.cfg.App, filepath.Base(os.Args[0])), Observer: l.metrics, Logger: calm})
		if err != nil {
			return err
		}
		l.usage = recorder
	}
	first := file.Policy()
	if first == nil {
		first = new(policy.Policy) // it denies all, until the limits in Redis are known
	}
	cfg := l.cfg.Throttle
	cfg.TierOf = policystore.New(l.rdb, policystore.Config{Prefix: cfg.Prefix}).TierOr(cfg.TierOf)
	cfg.App, cfg.Observer, cfg.OnShadow, cfg.Logger = l.cfg.App, l.metrics, l.shadowed, calm
	if l.usage != nil {
		cfg.OnSpent = l.usage.Record
	}
	if events := l.cfg.Events; events != nil {
		events.Bind(l.cfg.App, cfg.Prefix, l.log, l.metrics)
		cfg.Observer = deciding{l.metrics, events}
	}
	limiter, err := throttle.New(l.rdb, first, cfg)
	if err != nil {
		return err
	}
	l.source.Attach(limiter)
	l.Middleware, err = NewMiddleware(l.middleware(limiter, calm))
	if err != nil {
		return err
	}
	l.rdb.AddHook(l.health)
	if l.cfg.NoMetrics {
		return nil
	}
	if err := l.cfg.Registerer.Register(l.metrics); err != nil { // last: a name can be registered only once
		return fmt.Errorf("worker: the metrics cannot be registered; give each New of a process a Registerer of its own, or NoMetrics: %w", err)
	}
	return nil
}

func (l *Limits) middleware(limiter *throttle.Limiter, calm *slog.Logger) MiddlewareConfig {
	cfg := l.cfg.Middleware
	cfg.Redis, cfg.Limiter, cfg.Logger = l.rdb, limiter, calm
	all := observers{l.metrics, &l.summary}
	if cfg.Observer != nil {
		all = append(all, cfg.Observer)
	}
	if l.cfg.Events != nil {
		all = append(all, polls{events: l.cfg.Events})
	}
	cfg.Observer = all
	if l.usage != nil {
		cfg.Usage = l.usage
	}
	if l.cfg.Spends != nil {
		cfg.Spends = l.cfg.Spends
	}
	if l.cfg.Costs != nil {
		cfg.Costs = l.cfg.Costs
	}
	if l.cfg.Record != nil {
		cfg.Record = l.cfg.Record
	}
	if l.cfg.OnMaxWait != nil {
		cfg.OnMaxWait = l.cfg.OnMaxWait
	}
	if cfg.failRefused == nil {
		cfg.failRefused = neverAdmitted(policystore.New(l.rdb, policystore.Config{Prefix: l.cfg.Throttle.Prefix}), limiter)
	}
	return cfg
}

// neverAdmitted returns the default of MiddlewareConfig.failRefused: whether none of the past limits, those of the limiter and of the
// versions in Redis, has admitted a task that costs too much now. It returns false for any other why, and while Redis does not answer,
// so that no task is lost. After each change of the limits a call reads their history.
func neverAdmitted(store *policystore.Store, limiter *throttle.Limiter) func(ctx context.Context, task throttle.Request, why error) bool {
	var mu sync.Mutex
	var now *policy.Policy // when the versions were read
	var kept []*policy.Policy
	return func(ctx context.Context, task throttle.Request, why error) bool {
		if !errors.As(why, new(*policy.CostError)) {
			return false
		}
		admits := func(p *policy.Policy) bool { return task.Check(p) == nil }
		if slices.ContainsFunc(limiter.EarlierPolicies(), admits) {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if is := limiter.Policy(); is != now {
			_, policies, err := store.Policies(ctx)
			if err != nil {
				return false
			}
			kept, now = policies, is
		}
		return !slices.ContainsFunc(kept, admits)
	}
}

func (l *Limits) shadowed(s throttle.Shadowed) {
	l.metrics.Shadowed(s)
	if l.usage != nil {
		l.usage.Shadowed(s)
	}
}

// Limiter returns the limiter, for calls outside of tasks. Until a server runs, it uses only the file.
func (l *Limits) Limiter() *throttle.Limiter { return l.Middleware.cfg.Limiter }

// RedisErr returns why Redis is unusable, nil if it answers and accepts writes. An answer at most
// maxAge old is reused; otherwise RedisErr pings Redis, for a second at most.
func (l *Limits) RedisErr(ctx context.Context, maxAge time.Duration) error {
	return l.health.Check(ctx, maxAge)
}

// LimitsErr returns why the limits in Redis are not in force in this process, nil if they are.
func (l *Limits) LimitsErr() error {
	l.faults.Lock()
	defer l.faults.Unlock()
	return l.fault
}

func (l *Limits) refused(err error) {
	l.faults.Lock()
	defer l.faults.Unlock()
	l.fault = err
}

// FileErr returns why the present limits file cannot be used, if it has changed since it was last
// loaded, nil if it can. The previous limits stay in force until it is fixed.
func (l *Limits) FileErr() error {
	l.faults.Lock()
	defer l.faults.Unlock()
	return l.ofFile
}

func (l *Limits) fileFault(err error) {
	l.faults.Lock()
	defer l.faults.Unlock()
	l.ofFile = err
	l.metrics.LimitsFileFaulty(err != nil)
}

// Workers returns how many asynq servers are live on this Redis, -1 while that is unknown.
func (l *Limits) Workers() int { return l.health.Workers() }

// MetricsHandler serves the metrics, and those of the Go runtime and the process, in the Prometheus
// text format, whether or not they are registered.
func (l *Limits) MetricsHandler() http.Handler { return l.metrics.Handler() }

// Logger returns a logger for packages that use Redis: during an outage, which is logged once, their warnings become Debug.
func (l *Limits) Logger() *slog.Logger { return l.health.Calm(l.log) }

// NewServer returns an asynq server whose tasks keep the limits: see Middleware.NewServer. If cfg has
// no logger, asynq logs to Config.Logger, without the messages that Headway logs itself. Config.Logger
// also receives the failures of tasks, before cfg.ErrorHandler is called.
func (l *Limits) NewServer(cfg asynq.Config) *Server {
	if cfg.Logger == nil {
		cfg.Logger, cfg.LogLevel = redishealth.NewAsynqLogger(l.log, l.health), asynq.DebugLevel
	}
	cfg.ErrorHandler = l.logFailures(cfg.ErrorHandler)
	s := l.Middleware.NewServer(cfg)
	s.limits = l
	return s
}

// reload has the limits file read again, unless that is asked for already.
func (l *Limits) reload() {
	select {
	case l.reloads <- syscall.SIGHUP:
	default:
	}
}

// Settle publishes the limits of this process and loads those in force. Begin calls it otherwise. It
// affects other processes, so call it when nothing else can fail any more.
func (l *Limits) Settle(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.settle(ctx)
}

func (l *Limits) settle(ctx context.Context) error {
	if l.settled {
		return nil
	}
	rules, err := l.source.Settle(ctx)
	if err != nil {
		return noLimits(err)
	}
	l.Limiter().SetPolicy(rules)
	l.warnOfUnits(ctx, rules)
	l.settled = true
	return nil
}

// Preview returns the limits that Settle would put in force, and publishes nothing. Use it to check everything else that can keep a
// process from starting, so that a failed start changes no limits. The error is that of Settle.
func (l *Limits) Preview(ctx context.Context) (*policy.Policy, error) {
	p, err := l.source.Preview(ctx)
	return p, noLimits(err)
}

func noLimits(err error) error {
	if errors.Is(err, policystore.ErrNone) {
		return fmt.Errorf("worker: there are no limits: Config has neither LimitsFile nor Limits, and no process has published any: %w", err)
	}
	return err
}

// warnOfUnits warns if Spends is set, Costs is nil, and a rule counts a unit other than requests: the
// tasks of Spends cost none of that unit.
func (l *Limits) warnOfUnits(ctx context.Context, rules *policy.Policy) {
	if cfg := l.Middleware.cfg; cfg.Spends == nil || cfg.Costs != nil {
		return
	}
	for pattern, r := range rules.Rules() {
		if !r.Unlimited && r.Algorithm != policy.Concurrency && r.Unit != policy.Requests {
			l.log.WarnContext(ctx, "rule does not limit tasks of Spends: Config.Costs is nil, so they cost none of its unit; set Costs",
				"scope", pattern, "rule", r.Name, "unit", r.Unit)
			return
		}
	}
}

// Begin starts the background work: it follows and reloads the limits, records usage, and watches
// Redis. Servers of NewServer call it when they start, and call End when they shut down; programs with
// a server of their own call both. It may be called more than once; the last End stops the work.
func (l *Limits) Begin(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.settle(ctx); err != nil {
		return err
	}
	if l.begun++; l.begun == 1 {
		beside, end := context.WithCancel(context.WithoutCancel(ctx))
		l.end, l.beside = end, l.runBeside(beside)
		l.running.Store(true)
	}
	return nil
}

func (l *Limits) runBeside(ctx context.Context) *sync.WaitGroup {
	var wg sync.WaitGroup
	wg.Go(func() { l.health.Run(ctx) })
	if l.usage != nil {
		wg.Go(func() { l.usage.Run(ctx) })
	}
	wg.Go(func() { l.source.Follow(ctx, l.Limiter(), l.health.Calm(l.log), l.refused) })
	if l.cfg.Events != nil {
		wg.Go(func() { l.cfg.Events.Run(ctx, l.rdb, l.Limiter()) })
	}
	if l.cfg.Record != nil {
		wg.Go(func() { l.cfg.Record.Run(ctx, l.recording) })
	}
	if l.cfg.Summary >= 0 {
		wg.Go(func() { l.summary.run(ctx, l.cfg.Summary, l.log, l.waiting) })
	}
	wg.Go(func() { l.source.Reload(ctx, cmp.Or(l.cfg.ReloadOn, l.reloads)) })
	return &wg
}

// waiting counts the tasks that wait in the queues of this process.
func (l *Limits) waiting(ctx context.Context) (int64, error) {
	return asynqread.Backlog(ctx, l.rdb, l.queues.Own())
}

// End stops what Begin has started. Without a Begin it does nothing.
func (l *Limits) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun == 0 {
		return
	}
	if l.begun--; l.begun > 0 {
		return
	}
	l.running.Store(false)
	l.end()
	l.beside.Wait()
	if !l.cfg.NoMetrics {
		l.cfg.Registerer.Unregister(l.metrics)
	}
	if l.owned {
		if err := l.rdb.Close(); err != nil {
			l.log.Warn("cannot close the Redis client", "error", err)
		}
	}
}
