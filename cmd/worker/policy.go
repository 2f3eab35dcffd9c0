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
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// publishAgain is how often a worker whose Redis user may not publish tries to, where there are no
// limits in Redis.
const publishAgain = time.Minute

// loadPolicy reads a limits file. Every fault in it is one line of the error.
func loadPolicy(path string) (*policy.Policy, error) {
	text, _, err := readFile(path)
	if err != nil {
		return nil, limitsUnread(path, err)
	}
	return parseLimits(path, text)
}

func parseLimits(path string, text []byte) (*policy.Policy, error) {
	p, err := policy.Parse(path, text)
	if err != nil {
		return nil, &cli.Error{What: err.Error(), Try: "mend these lines of " + path + "; nothing was started", Err: err}
	}
	return p, nil
}

func limitsUnread(path string, err error) error {
	var told *cli.Error
	switch {
	case errors.As(err, &told), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return &cli.Error{What: "there is no limits file " + path, Try: "-limits examples/quickstart/limits.yaml", Err: err}
	case errors.Is(err, fs.ErrPermission):
		return &cli.Error{What: "no permission to read the limits file " + path, Try: "chmod +r " + path, Err: err}
	}
	return &cli.Error{What: "cannot read the limits file " + path + ": " + err.Error(), Err: err}
}

// limitsSource is the limits file of a worker, as it was read last. The zero limitsSource is none.
type limitsSource struct {
	path   string
	text   []byte
	stood  fileStamp
	policy *policy.Policy
}

// readLimitsFile reads the file of a worker that starts, when nobody is writing it any more.
func readLimitsFile(ctx context.Context, path string) (limitsSource, error) {
	f := limitsSource{path: path}
	if path == "" {
		return f, nil
	}
	var err error
	if f.text, f.stood, err = readSettled(ctx, path); err != nil {
		return f, limitsUnread(path, err)
	}
	f.policy, err = parseLimits(path, f.text)
	return f, err
}

// limits is where a worker has its policy from: its file, and what stands in Redis,
// which all workers share.
type limits struct {
	store *policystore.Store
	by    string // this worker, in the history
	log   *slog.Logger
	// apply puts a policy in force in this process alone; nil before there is a limiter.
	apply func(*policy.Policy)

	mu       sync.Mutex
	read     limitsSource
	older    bool      // it was superseded
	told     bool      // that it could not be published
	writable bool      // it was told that others may write it
	again    time.Time // when a file that may not be published is tried again
}

// newLimits has what was read of a file.
func newLimits(rdb redis.UniversalClient, read limitsSource, log *slog.Logger) *limits {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &limits{store: policystore.New(rdb, policystore.Config{}), read: read, by: "worker on " + host, log: log}
}

// settle publishes the file, if there is one, and returns the policy to begin with: the
// one that all workers run under.
func (l *limits) settle(ctx context.Context) (*policy.Policy, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.read.policy != nil {
		l.writable = warnOfMode(ctx, l.log, l.read.path, l.read.stood)
		if err := l.begin(ctx); err != nil {
			return nil, explainDamage(err)
		}
	}
	if err := l.wait(ctx); err != nil {
		return nil, explainDamage(err)
	}
	policy, err := l.store.Now(ctx)
	switch {
	case errors.Is(err, policystore.ErrNone) && l.read.policy != nil: // it may not be published
		return l.read.policy, nil
	case errors.Is(err, policystore.ErrNone):
		return nil, cli.Errorf("worker -limits limits.yaml (see examples/quickstart/limits.yaml)",
			"there are no limits: -limits is not given, and no worker has published any in the last 24 hours")
	case err != nil:
		return nil, explainDamage(err)
	case l.read.policy == nil:
		l.log.InfoContext(ctx, "running under the limits that another worker has published, or somebody has set")
	}
	l.tellPauses(ctx, policy)
	return policy, nil
}

// begin publishes the file of a worker that starts. One whose Redis user may not goes by what stands
// in Redis.
func (l *limits) begin(ctx context.Context) error {
	stood, err := l.store.File(ctx)
	if err != nil && !errors.Is(err, policystore.ErrNone) && !errors.As(err, new(*policystore.DamagedError)) {
		return err // else it is only not told what the new one lacks
	}
	err = l.publish(ctx, nil, stood)
	if errors.Is(err, policystore.ErrNotPermitted) {
		return l.notPermitted(ctx, err)
	}
	return err
}

// notPermitted says what follows where the Redis user may not publish the file: nothing, where the
// limits in Redis rest on the same.
func (l *limits) notPermitted(ctx context.Context, cause error) error {
	v, err := l.store.Current(ctx)
	switch {
	case errors.Is(err, policystore.ErrNone):
		l.log.WarnContext(ctx, "this Redis user may not publish limits, and there are none in Redis: this worker goes by its own file until there are; "+
			"worker limits import -replace publishes it, run as a user that may change limits", "file", l.read.path, "error", cause)
		l.told = true
		if l.apply != nil {
			l.apply(l.read.policy)
		}
		return nil
	case err != nil:
		return err
	case !v.RestsOn(l.read.policy):
		l.log.WarnContext(ctx, "this Redis user may not publish the limits file, which is not the one in Redis; those in Redis count; "+
			"worker limits import -replace publishes it, run as a user that may change limits", "file", l.read.path, "version", v.Number, "error", cause)
	}
	return nil
}

// tellPauses says that something is paused, since tasks then wait for no reason that shows.
func (l *limits) tellPauses(ctx context.Context, pol *policy.Policy) {
	var paused []string
	_, tree := pol.Limits()
	for path, n := range policystore.Nodes(tree) {
		if n.Pause == policy.PauseOn {
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
	if errors.Is(err, policystore.ErrNone) || err == nil && v.Number == 1 {
		return nil
	} else if err != nil {
		return err
	}
	in, err := l.store.InForceIn(ctx, v)
	timer := time.NewTimer(min(in, policystore.Notice))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return err
}

// explainDamage says what to do about limits in Redis that are not understood.
func explainDamage(err error) error {
	if errors.As(err, new(*policystore.DamagedError)) {
		return &cli.Error{What: plainly(err), Try: "this program's newest version; DEL hw:limits loses what was set live", Err: err}
	}
	if errors.As(err, new(*policy.Error)) {
		return &cli.Error{What: err.Error(), Try: "worker -limits limits.yaml, which publishes a good one", Err: err}
	}
	return err
}

// publish makes the file the one that workers run under. before is what it said until
// somebody changed it, and stood the file that it takes the place of; both may be nil. l.mu is held.
func (l *limits) publish(ctx context.Context, before, stood *policy.Policy) error {
	became, v, err := l.store.PublishFile(ctx, l.by, l.read.policy, before)
	if err != nil {
		return err
	}
	l.older = became == policystore.FileSuperseded
	switch {
	case l.older:
		l.log.WarnContext(ctx, "the limits file is an older one, which was superseded, and changes nothing; worker limits import -replace brings it back",
			"file", l.read.path, "version", v.Number, "by", v.File.By, "at", v.File.At)
	case v.Imported != nil:
		l.log.WarnContext(ctx, "the limits that were imported stand in place of the file; worker limits unset lets it count again",
			"file", l.read.path, "version", v.Number, "by", v.Imported.By, "at", v.Imported.At)
	case became == policystore.FileNew:
		l.log.InfoContext(ctx, "the limits file is published", "file", l.read.path, "version", v.Number)
	}
	if became == policystore.FileNew {
		l.tellGone(ctx, stood, l.read.policy)
	}
	if n := len(v.Rules); n > 0 {
		l.log.InfoContext(ctx, "rules that were set live stand over the file; worker limits list shows them", "rules", n, "version", v.Number)
	}
	return nil
}

// follow keeps the limiter's policy what all workers run under, until ctx ends.
func (l *limits) follow(ctx context.Context, limiter *throttle.Limiter, log *slog.Logger, refused func(error)) {
	policystore.Follow(ctx, l.store, limiter, policystore.FollowConfig{
		Logger:    log,
		OnVersion: func(policystore.Version, *policy.Policy) { refused(nil) },
		OnRefused: refused,
		OnNone:    func() { l.restore(ctx) },
	})
}

// restore publishes the file again where Redis was emptied.
func (l *limits) restore(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.read.policy == nil || l.older || time.Now().Before(l.again) { // another worker has the newer one
		return
	}
	err := l.publish(ctx, nil, nil)
	switch {
	case err == nil:
		l.log.WarnContext(ctx, "the limits were gone from Redis; the file was published again", "file", l.read.path)
	case !l.told && ctx.Err() == nil:
		l.log.WarnContext(ctx, "the limits are gone from Redis, and the file could not be published; trying again", "error", err)
	}
	l.told = err != nil
	if errors.Is(err, policystore.ErrNotPermitted) {
		l.again = time.Now().Add(publishAgain)
	}
}
