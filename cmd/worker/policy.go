package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policies"
)

const (
	publishEvery = time.Hour
	publishAgain = time.Minute // after it failed
)

// loadPolicy reads the limits file. Every fault in it is one line of the error.
func loadPolicy(path string) (*throttle.Policy, error) {
	p, err := throttle.LoadPolicy(path)
	if err == nil {
		return p, nil
	}
	var faults *throttle.PolicyError
	switch {
	case errors.As(err, &faults):
		return nil, &cli.Error{What: err.Error(), Try: "mend these lines of " + path + "; nothing was started", Err: err}
	case errors.Is(err, fs.ErrNotExist):
		return nil, &cli.Error{What: "there is no limits file " + path, Try: "-limits examples/quickstart/limits.yaml", Err: err}
	case errors.Is(err, fs.ErrPermission):
		return nil, &cli.Error{What: "no permission to read the limits file " + path, Try: "chmod +r " + path, Err: err}
	}
	return nil, &cli.Error{What: "cannot read the limits file " + path + ": " + err.Error(), Err: err}
}

// limits is where a worker has its policy from: its file, and what stands in Redis,
// which all workers share.
type limits struct {
	rdb   redis.UniversalClient
	store *policies.Store
	path  string    // of the file; "" for none
	stood fileStamp // when it was read last
	by    string    // this worker, in the history
	log   *slog.Logger

	mu    sync.Mutex
	file  *throttle.Policy // what it said last; nil for none
	older bool             // it was superseded
	told  bool             // that it could not be published
}

// newLimits has a file that stood so when it was read.
func newLimits(rdb redis.UniversalClient, path string, stood fileStamp, file *throttle.Policy, log *slog.Logger) *limits {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &limits{rdb: rdb, store: policies.New(rdb, policies.Config{}), path: path, stood: stood, file: file, by: "worker on " + host, log: log}
}

// settle publishes the file, if there is one, and returns the policy to begin with: the
// one that all workers run under.
func (l *limits) settle(ctx context.Context) (*throttle.Policy, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		if err := l.publish(ctx, nil); err != nil {
			return nil, explainDamage(err)
		}
	}
	if err := l.wait(ctx); err != nil {
		return nil, explainDamage(err)
	}
	policy, err := queue.PublishedPolicy(ctx, l.rdb)
	switch {
	case err != nil:
		return nil, explainDamage(err)
	case policy == nil:
		return nil, cli.Errorf("worker -limits limits.yaml (see examples/quickstart/limits.yaml)",
			"there are no limits: -limits is not given, and no worker has published any in the last 24 hours")
	case l.file == nil:
		l.log.InfoContext(ctx, "running under the limits that another worker has published, or somebody has set")
	}
	l.tellPauses(ctx, policy)
	return policy, l.show(ctx, policy)
}

// tellPauses says that something is paused, since tasks then wait for no reason that shows.
func (l *limits) tellPauses(ctx context.Context, policy *throttle.Policy) {
	var paused []string
	_, tree := policy.Limits()
	for path, n := range policies.Nodes(tree) {
		if n.Pause == throttle.PauseOn {
			paused = append(paused, path)
		}
	}
	if len(paused) > 0 {
		l.log.WarnContext(ctx, "somebody has paused what tasks spend from; worker limits list shows it", "paused", len(paused), "first", paused[0])
	}
}

// wait waits until what was written last is in force: until then other workers decide
// under what it superseded.
func (l *limits) wait(ctx context.Context) error {
	v, err := l.store.Current(ctx)
	if errors.Is(err, policies.ErrNone) || err == nil && v.Number == 1 {
		return nil
	} else if err != nil {
		return err
	}
	in, err := l.store.InForceIn(ctx, v)
	timer := time.NewTimer(min(in, policies.Notice))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return err
}

// explainDamage says what to do about limits in Redis that are not understood.
func explainDamage(err error) error {
	if errors.As(err, new(*policies.DamagedError)) {
		return &cli.Error{What: plainly(err), Try: "this program's newest version; DEL hw:limits loses what was set live", Err: err}
	}
	if errors.As(err, new(*throttle.PolicyError)) {
		return &cli.Error{What: err.Error(), Try: "worker -limits limits.yaml, which publishes a good one", Err: err}
	}
	return err
}

// publish makes the file the one that workers run under. before is what it said until
// somebody changed it. l.mu is held.
func (l *limits) publish(ctx context.Context, before *throttle.Policy) error {
	became, v, err := l.store.PublishFile(ctx, l.by, l.file, before)
	if err != nil {
		return err
	}
	l.older = became == policies.FileSuperseded
	switch {
	case l.older:
		l.log.WarnContext(ctx, "the limits file is an older one, which was superseded, and changes nothing; worker limits import -replace brings it back",
			"file", l.path, "version", v.Number, "by", v.File.By, "at", v.File.At)
	case v.Imported != nil:
		l.log.WarnContext(ctx, "the limits that were imported stand in place of the file; worker limits unset lets it count again",
			"file", l.path, "version", v.Number, "by", v.Imported.By, "at", v.Imported.At)
	case became == policies.FileNew:
		l.log.InfoContext(ctx, "the limits file is published", "file", l.path, "version", v.Number)
	}
	if n := len(v.Rules); n > 0 {
		l.log.InfoContext(ctx, "rules that were set live stand over the file; worker limits list shows them", "rules", n, "version", v.Number)
	}
	return nil
}

// show lets programs of earlier releases, which know one text, have the policy.
func (l *limits) show(ctx context.Context, policy *throttle.Policy) error {
	return queue.PublishPolicy(ctx, l.rdb, policy)
}

// follow keeps the limiter's policy what all workers run under, until ctx ends.
func (l *limits) follow(ctx context.Context, limiter *throttle.Limiter, log *slog.Logger, refused func(error)) {
	policies.Follow(ctx, l.store, limiter, policies.FollowConfig{
		Logger: log,
		OnVersion: func(_ policies.Version, p *throttle.Policy) {
			refused(nil)
			if err := l.show(ctx, p); err != nil && ctx.Err() == nil {
				l.log.WarnContext(ctx, "limits in force could not be published for programs of earlier releases", "error", err)
			}
		},
		OnRefused: refused,
		OnNone:    func() { l.restore(ctx) },
	})
}

// restore publishes the file again where Redis was emptied.
func (l *limits) restore(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil || l.older { // another worker has the newer one
		return
	}
	err := l.publish(ctx, nil)
	switch {
	case err == nil:
		l.log.WarnContext(ctx, "the limits were gone from Redis; the file was published again", "file", l.path)
	case !l.told && ctx.Err() == nil:
		l.log.WarnContext(ctx, "the limits are gone from Redis, and the file could not be published; trying again", "error", err)
	}
	l.told = err != nil
}

// keep renews what stands in Redis, so that it outlives neither the workers by much nor
// their Redis.
func (l *limits) keep(ctx context.Context, policy func() *throttle.Policy) error {
	return errors.Join(l.store.Keep(ctx), l.show(ctx, policy()))
}

// keepPublished calls publish every hour until ctx ends.
func keepPublished(ctx context.Context, publish func(context.Context) error, log *slog.Logger) {
	timer := time.NewTimer(publishEvery)
	defer timer.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := publish(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			log.WarnContext(ctx, "the limits could not be published again; trying each minute", "error", err)
		case err == nil && failing:
			log.InfoContext(ctx, "the limits are published again")
		}
		failing = err != nil
		if failing {
			timer.Reset(publishAgain)
		} else {
			timer.Reset(publishEvery)
		}
	}
}
