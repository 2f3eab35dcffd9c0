// Package limitsfile keeps the limits of one process: its limits.yaml, and the limits in Redis, which all processes share.
//
//	file, err := limitsfile.Read(ctx, "limits.yaml")
//	source := limitsfile.New(rdb, file, limitsfile.Config{Logger: logger})
//	rules, err := source.Settle(ctx) // publishes the file
//	limiter, err := throttle.New(rdb, rules, throttle.Config{})
//	source.Attach(limiter)
//	go source.Follow(ctx, limiter, logger, nil)
//	go source.Reload(ctx, nil)
//
// Package worker does all of this for the server of an asynq app. A program that only reads a file needs limitsyaml.Load alone.
package limitsfile

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/filewatch"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

const (
	// deniedEvery is how often a process whose Redis user may not publish tries to, while Redis has no limits.
	deniedEvery = time.Minute
	// replacedWaits is how long a file that was replaced waits, in a Redis that was emptied, for a process with the newer one.
	replacedWaits = time.Minute
)

// Source is the origin of a process's policy: its file, and the limits in Redis. It is safe for concurrent use.
type Source struct {
	rdb   redis.UniversalClient
	store *policystore.Store
	cfg   Config
	log   *slog.Logger
	// changes reports that the file has changed and settled.
	changes func(ctx context.Context, path string) <-chan struct{}

	mu       sync.Mutex
	read     File
	apply    func(*policy.Policy) // sets the policy of this process; nil before there is a limiter
	replaced bool                 // another file was published since
	gone     time.Time            // since when there are no limits in Redis; zero while there are
	failed   bool                 // the file could not be published
	writable bool                 // it was logged that others may write the file
	again    time.Time            // when a file that may not be published is tried again
	faulty   bool                 // the present file cannot be used
}

// Config configures a Source. The zero Config is ready to use.
type Config struct {
	// By is the name of this process in the history of the limits. Defaults to the program's name and the host's: billing on web-3.
	By string
	// App is the application, as in policystore.Process. Worker reports that this process runs tasks.
	App    string
	Worker bool
	// Prefix is that of policystore.Config. Defaults to "hw".
	Prefix string
	// Logger gets a line for each outcome of the file and of changes. Defaults to none.
	Logger *slog.Logger
	// OnFault receives the reason when Reload finds that the file was changed into one that cannot be used, so that the earlier limits
	// stay, and nil when the file is valid again. Defaults to none.
	OnFault func(error)
	// OnVersion receives the number of each version that Follow has put in force. It must not block. Defaults to none.
	OnVersion func(int64)
}

// New returns a Source of a file that was read. It does no I/O.
func New(rdb redis.UniversalClient, read File, cfg Config) *Source {
	if cfg.By == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		cfg.By = strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") + " on " + host
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.OnFault == nil {
		cfg.OnFault = func(error) {}
	}
	if cfg.OnVersion == nil {
		cfg.OnVersion = func(int64) {}
	}
	return &Source{rdb: rdb, store: policystore.New(rdb, policystore.Config{Prefix: cfg.Prefix}), cfg: cfg, log: cfg.Logger, changes: filewatch.Changes, read: read}
}

// Attach sets the limiter that runs by the limits file where this process may not publish the file and Redis has no limits.
func (s *Source) Attach(limiter *throttle.Limiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apply = limiter.SetPolicy
}

// Settle publishes the file, if there is one, and returns the policy to begin with: the one that all processes run under. It waits until
// that is in force. A process publishes a file that Redis has never had, and any other if no worker runs: see
// policystore.Store.PublishFile. The error wraps policystore.ErrNone if there is neither a file nor a published policy, and otherwise is
// one of policystore.
func (s *Source) Settle(ctx context.Context) (*policy.Policy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.read.policy != nil {
		s.writable = WarnOfMode(ctx, s.log, s.read.path, s.read.stood)
		if err := s.publishIfPermitted(ctx, false); err != nil {
			return nil, err
		}
	}
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	now, err := s.store.Now(ctx)
	switch {
	case errors.Is(err, policystore.ErrNone) && s.read.policy != nil: // it may not be published
		return s.read.policy, nil
	case err != nil:
		return nil, err
	case s.read.policy == nil:
		s.log.InfoContext(ctx, "using the limits in Redis")
	}
	s.warnPauses(ctx, now)
	return now, nil
}

// Preview returns the policy that Settle would return, and publishes nothing, so that a program can check its other start conditions
// against it. The error is that of Settle.
func (s *Source) Preview(ctx context.Context) (*policy.Policy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Preview(ctx, s.read.policy)
}

// Newest returns the number of the newest version of the limits in Redis, 0 if there is none. The error is that of
// policystore.Store.Newest.
func (s *Source) Newest(ctx context.Context) (int64, error) { return s.store.Newest(ctx) }

// wait waits until the newest version is in force: until then other workers decide under the one before.
func (s *Source) wait(ctx context.Context) error {
	v, err := s.store.Current(ctx)
	if errors.Is(err, policystore.ErrNone) || err == nil && v.Number == 1 {
		return nil
	} else if err != nil {
		return err
	}
	in, err := s.store.InForceIn(ctx, v)
	pause(ctx, min(in, policystore.Notice))
	return err
}

// publishIfPermitted publishes the file. A process whose Redis user may not goes by the limits in Redis.
func (s *Source) publishIfPermitted(ctx context.Context, changed bool) error {
	denied := s.publish(ctx, changed)
	if !errors.Is(denied, policystore.ErrNotPermitted) {
		return denied
	}
	v, err := s.store.Current(ctx)
	switch {
	case errors.Is(err, policystore.ErrNone):
		s.log.WarnContext(ctx, "no permission to publish limits, and Redis has none: using the limits file until Redis has limits; "+
			"to publish it, run worker limits import -replace as a user that may change limits", "file", s.read.path, "error", denied)
		s.failed = true
		if s.apply != nil {
			s.apply(s.read.policy)
		}
		return nil
	case err != nil:
		return err
	case !v.RestsOn(s.read.policy):
		s.log.WarnContext(ctx, "no permission to publish the limits file, which differs from the one in Redis; using the limits in Redis; "+
			"to publish it, run worker limits import -replace as a user that may change limits", "file", s.read.path, "version", v.Number, "error", denied)
	}
	return nil
}

// publish makes the file the one that all processes run under, if it is new or has changed while this process ran, and logs what became of
// it. s.mu is held.
func (s *Source) publish(ctx context.Context, changed bool) error {
	stood := s.published(ctx)
	published, v, err := s.store.PublishFile(ctx, s.cfg.By, s.read.policy, changed)
	if err != nil {
		return err
	}
	s.replaced, s.gone = !v.HasFile(s.read.policy), time.Time{}
	switch {
	case s.replaced:
		s.warnReplaced(ctx, v)
	case v.Imported != nil:
		s.log.WarnContext(ctx, "imported limits override the limits file; run worker limits unset to apply the file",
			"file", s.read.path, "version", v.Number, "by", v.Imported.By, "at", v.Imported.At)
	case published:
		s.log.InfoContext(ctx, "limits file published", "file", s.read.path, "version", v.Number)
	}
	if published {
		s.warnRemoved(ctx, stood)
		s.warnUnmatched(ctx, v)
		if odd := throttle.Lint(s.read.policy); len(odd) > 0 {
			s.log.WarnContext(ctx, "limits file has warnings; worker limits check lists them",
				"file", s.read.path, "warnings", len(odd), "first", odd[0].String())
		}
	}
	if n := len(v.Overrides); n > 0 {
		s.log.InfoContext(ctx, "live changes override the limits file; worker limits list shows them", "changes", n, "version", v.Number)
	}
	return nil
}

// published returns the file in Redis, nil if there is none or it cannot be read: then only the log has less.
func (s *Source) published(ctx context.Context) *policy.Policy {
	v, err := s.store.Current(ctx)
	if err != nil || v.File == nil {
		return nil
	}
	p, _, err := s.store.Policy(ctx, policystore.Version{Number: v.Number, File: v.File}, time.Time{})
	if err != nil {
		return nil
	}
	return p
}

// warnReplaced logs that the limits of another process's file are in force instead of this one's.
func (s *Source) warnReplaced(ctx context.Context, v policystore.Version) {
	s.log.WarnContext(ctx, "limits file was replaced by a newer one, which is in force; give this process the newer file, "+
		"or run worker limits import -replace FILE to apply this one", "file", s.read.path, "version", v.Number, "by", v.File.By, "at", v.File.At)
}

// warnPauses logs that a scope is paused, since its tasks then wait for no visible reason.
func (s *Source) warnPauses(ctx context.Context, p *policy.Policy) {
	var paused []string
	_, tree := p.Limits()
	for path, n := range policystore.Nodes(tree) {
		if n.Pause == policy.PauseOn {
			paused = append(paused, path)
		}
	}
	if len(paused) > 0 {
		s.log.WarnContext(ctx, "scopes are paused; worker limits list shows them", "paused", len(paused), "first", paused[0])
	}
}

// Follow keeps the limiter's policy up to date with the one that all processes run under, until ctx ends. If Redis was emptied, it
// publishes the file again. refused is called with an error when limits in Redis cannot be decoded, and with nil when they can be again; it
// may be nil.
func (s *Source) Follow(ctx context.Context, limiter *throttle.Limiter, log *slog.Logger, refused func(error)) {
	if refused == nil {
		refused = func(error) {}
	}
	policystore.Follow(ctx, s.store, limiter, policystore.FollowConfig{
		Logger: log,
		OnVersion: func(v policystore.Version, _ *policy.Policy) {
			s.inForce(ctx, v)
			refused(nil)
			s.cfg.OnVersion(v.Number)
		},
		OnRefused: refused,
		OnNone:    func() { s.restore(ctx) },
		App:       s.cfg.App, Worker: s.cfg.Worker,
	})
}

// inForce notes whether the file of this process counts, and logs when it no longer does. Limits without any file get this one.
func (s *Source) inForce(ctx context.Context, v policystore.Version) {
	if v.File == nil { // the limits were set in a Redis that had been emptied
		s.restore(ctx)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.replaced
	s.gone, s.replaced = time.Time{}, s.read.policy != nil && !v.HasFile(s.read.policy)
	if s.replaced && !before && v.Imported == nil {
		s.warnReplaced(ctx, v)
	}
}

// restore publishes the file again if Redis was emptied. A file that was replaced waits for the processes that have the newer one.
func (s *Source) restore(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone.IsZero() {
		s.gone = time.Now()
	}
	if s.read.policy == nil || s.replaced && time.Since(s.gone) < replacedWaits || time.Now().Before(s.again) {
		return
	}
	err := s.publish(ctx, false)
	switch {
	case err == nil:
		s.log.WarnContext(ctx, "limits were missing in Redis; limits file published again", "file", s.read.path)
	case !s.failed && ctx.Err() == nil:
		s.log.WarnContext(ctx, "limits are missing in Redis, and the limits file cannot be published; retrying", "error", err)
	}
	s.failed = err != nil
	if errors.Is(err, policystore.ErrNotPermitted) {
		s.again = time.Now().Add(deniedEvery)
	}
}
