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

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// publishAgain is how often a worker whose Redis user may not publish tries to, where there are no
// limits in Redis.
const publishAgain = time.Minute

const (
	// holdAgain is how often a worker whose Redis user may not publish tries to say which file it has.
	holdAgain = time.Hour
	// olderRestores is how long a file that was superseded waits, where Redis was emptied, for a newer one.
	olderRestores = time.Minute
	// releaseBound is how long a process takes at most, when it ends, to say that it has its file no more.
	releaseBound = time.Second
)

// File is a limits file as it was last read. The zero File is no file.
type File struct {
	path   string
	text   []byte
	stood  Stamp
	policy *policy.Policy
}

// Of returns a File of limits from Go values, which Settle publishes like a file; name stands for its
// path in logs.
func Of(name string, p *policy.Policy) File {
	return File{path: name, text: limitsyaml.Format(p), policy: p}
}

// Policy returns the policy of the file, or nil if there is none.
func (f File) Policy() *policy.Policy { return f.policy }

// Read reads a limits file once it has not changed for a second: a program that writes it in place may
// be half-way through. An empty path is no file. The error is a *policy.Error, that of the file
// system, ctx's, or ErrBusy.
func Read(ctx context.Context, path string) (File, error) {
	f := File{path: path}
	if path == "" {
		return f, nil
	}
	var err error
	if f.text, f.stood, err = ReadSettled(ctx, path); err != nil {
		return f, err
	}
	f.policy, err = limitsyaml.Parse(path, f.text)
	return f, err
}

// Source is the origin of a process's policy: its file, and the limits in Redis, which all processes
// share. It is safe for concurrent use.
type Source struct {
	rdb    redis.UniversalClient
	prefix string
	store  *policystore.Store
	holder *policystore.Holder
	self   policystore.Process // as other programs learn of it
	log    *slog.Logger
	// apply puts a policy in force in this process alone; nil before there is a limiter.
	apply func(*policy.Policy)

	mu       sync.Mutex
	read     File
	older    bool      // it was superseded
	version  int64     // of the limits when it was published last
	gone     time.Time // since when there are no limits in Redis; zero while there are
	told     bool      // that it could not be published
	writable bool      // it was told that others may write it
	again    time.Time // when a file that may not be published is tried again
	faulty   bool      // what stands there by now cannot be used
	onFault  func(error)

	onVersion func(int64)
}

// Config configures a Source. The zero Config is ready to use.
type Config struct {
	// By is the name of this process in the history of the limits. Defaults to the program's name and the
	// host's: billing on web-3.
	By string
	// App is the application, as in policystore.Process. Worker reports that this process runs tasks.
	App    string
	Worker bool
	// Prefix is that of policystore.Config. Defaults to "hw".
	Prefix string
	// Logger gets a line for each outcome of the file and of changes. Defaults to none.
	Logger *slog.Logger
	// OnFault receives the reason when Reload finds that the file was changed into one that cannot be
	// used, so that the earlier limits stay, and nil when the file is valid again. Defaults to none.
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
	store := policystore.New(rdb, policystore.Config{Prefix: cfg.Prefix})
	return &Source{
		rdb: rdb, prefix: cfg.Prefix, store: store, holder: policystore.NewHolder(store, cfg.By), read: read, log: cfg.Logger,
		self: policystore.Process{App: cfg.App, Worker: cfg.Worker}, onFault: cfg.OnFault, onVersion: cfg.OnVersion,
	}
}

// Attach sets the limiter that runs by the limits file where this process may not publish the file and
// Redis has no limits.
func (l *Source) Attach(limiter *throttle.Limiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.apply = limiter.SetPolicy
}

// Settle publishes the file, if there is one, and returns the policy to begin with: the one that all
// processes run under. It waits until that is in force. The error wraps policystore.ErrNone if there
// is neither a file nor a published policy, and otherwise is one of policystore.
func (l *Source) Settle(ctx context.Context) (*policy.Policy, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.read.policy != nil {
		l.writable = WarnOfMode(ctx, l.log, l.read.path, l.read.stood)
		if err := l.begin(ctx); err != nil {
			return nil, err
		}
	}
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	now, err := l.store.Now(ctx)
	switch {
	case errors.Is(err, policystore.ErrNone) && l.read.policy != nil: // it may not be published
		return l.read.policy, nil
	case err != nil:
		return nil, err
	case l.read.policy == nil:
		l.log.InfoContext(ctx, "using the limits in Redis")
	}
	l.tellPauses(ctx, now)
	return now, nil
}

// Preview returns the policy that Settle would return, and publishes nothing, so that a program can
// check its other start conditions against it. The error is that of Settle.
func (l *Source) Preview(ctx context.Context) (*policy.Policy, error) {
	l.mu.Lock()
	file := l.read.policy
	l.mu.Unlock()
	return l.store.Preview(ctx, file)
}

// Newest returns the number of the newest version of the limits in Redis, 0 if there is none. The error is that of
// policystore.Store.Newest.
func (l *Source) Newest(ctx context.Context) (int64, error) { return l.store.Newest(ctx) }

// begin publishes the file of a worker that starts. One whose Redis user may not goes by what stands
// in Redis.
func (l *Source) begin(ctx context.Context) error {
	var stood *policy.Policy
	v, err := l.store.Current(ctx)
	if err == nil {
		stood, err = l.store.File(ctx, v)
	}
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
func (l *Source) notPermitted(ctx context.Context, cause error) error {
	v, err := l.store.Current(ctx)
	switch {
	case errors.Is(err, policystore.ErrNone):
		l.log.WarnContext(ctx, "no permission to publish limits, and Redis has none: using the limits file until Redis has limits; "+
			"to publish it, run worker limits import -replace as a user that may change limits", "file", l.read.path, "error", cause)
		l.told = true
		if l.apply != nil {
			l.apply(l.read.policy)
		}
		return nil
	case err != nil:
		return err
	case !v.RestsOn(l.read.policy):
		l.log.WarnContext(ctx, "no permission to publish the limits file, which differs from the one in Redis; using the limits in Redis; "+
			"to publish it, run worker limits import -replace as a user that may change limits", "file", l.read.path, "version", v.Number, "error", cause)
	}
	return nil
}

// tellPauses logs that a scope is paused, since its tasks then wait for no visible reason.
func (l *Source) tellPauses(ctx context.Context, pol *policy.Policy) {
	var paused []string
	_, tree := pol.Limits()
	for path, n := range policystore.Nodes(tree) {
		if n.Pause == policy.PauseOn {
			paused = append(paused, path)
		}
	}
	if len(paused) > 0 {
		l.log.WarnContext(ctx, "scopes are paused; worker limits list shows them", "paused", len(paused), "first", paused[0])
	}
}

// wait waits until what was written last is in force: until then other workers decide
// under what it superseded.
func (l *Source) wait(ctx context.Context) error {
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

// publish makes the file the one that workers run under. before is its policy before it was edited,
// and stood that of the file that it replaces; both may be nil. l.mu is held.
func (l *Source) publish(ctx context.Context, before, stood *policy.Policy) error {
	became, v, err := l.holder.Publish(ctx, l.read.policy, before)
	if err != nil {
		return err
	}
	l.became(ctx, became, v, stood)
	return nil
}

// became says what became of the file, stood being the one that it took the place of; it may be nil. l.mu is held.
func (l *Source) became(ctx context.Context, became policystore.Published, v policystore.Version, stood *policy.Policy) {
	l.older, l.gone, l.version = became == policystore.FileSuperseded, time.Time{}, v.Number
	switch {
	case l.older:
		l.tellOlder(ctx, v)
	case v.Imported != nil:
		l.log.WarnContext(ctx, "imported limits override the limits file; run worker limits unset to apply the file",
			"file", l.read.path, "version", v.Number, "by", v.Imported.By, "at", v.Imported.At)
	case became == policystore.FileNew:
		l.log.InfoContext(ctx, "limits file published", "file", l.read.path, "version", v.Number)
	case became == policystore.FileAgain:
		l.log.InfoContext(ctx, "limits file applies again: no process has the newer one", "file", l.read.path, "version", v.Number)
	}
	if became == policystore.FileNew || became == policystore.FileAgain {
		l.tellGone(ctx, stood, l.read.policy)
		l.warnUnmatched(ctx, v, stood)
		l.tellOdd(ctx)
	}
	if n := len(v.Rules); n > 0 {
		l.log.InfoContext(ctx, "rules set live override the limits file; worker limits list shows them", "rules", n, "version", v.Number)
	}
}

// tellOlder logs that the limits of another process's file are in force instead of this one's.
func (l *Source) tellOlder(ctx context.Context, v policystore.Version) {
	l.log.WarnContext(ctx, "limits file superseded by a newer one; give this process the newer file, or run worker limits import -replace FILE "+
		"to apply this one: else it applies again when no process has the newer one", "file", l.read.path, "version", v.Number, "by", v.File.By, "at", v.File.At)
}

// tellOdd logs that a published file has likely mistakes, and the first of them.
func (l *Source) tellOdd(ctx context.Context) {
	if odd := throttle.Lint(l.read.policy); len(odd) > 0 {
		l.log.WarnContext(ctx, "limits file has warnings; worker limits check lists them",
			"file", l.read.path, "warnings", len(odd), "first", odd[0].String())
	}
}

// Follow keeps the limiter's policy up to date with the one that all processes run under, until ctx
// ends. It publishes the file again if Redis was emptied, or if the file was superseded and no process
// has the newer one any more. refused is called with an error when limits in Redis cannot be decoded,
// and with nil when they can be again; it may be nil.
func (l *Source) Follow(ctx context.Context, limiter *throttle.Limiter, log *slog.Logger, refused func(error)) {
	if refused == nil {
		refused = func(error) {}
	}
	var beside sync.WaitGroup
	beside.Go(func() { l.hold(ctx) })
	policystore.Follow(ctx, l.store, limiter, policystore.FollowConfig{
		Logger:    log,
		OnVersion: func(v policystore.Version, _ *policy.Policy) { l.inForce(ctx, v); refused(nil); l.onVersion(v.Number) },
		OnRefused: refused,
		OnNone:    func() { l.restore(ctx) },
		App:       l.self.App, Worker: l.self.Worker,
	})
	beside.Wait()
}

// inForce notes whether the file of this process counts, and logs when it no longer does.
func (l *Source) inForce(ctx context.Context, v policystore.Version) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = time.Time{}
	was := l.older
	l.older = v.File != nil && l.read.policy != nil && !v.HasFile(l.read.policy)
	if l.older && !was && v.Imported == nil && v.Number > l.version {
		l.tellOlder(ctx, v)
	}
}

// hold makes known that this process has its file, until ctx ends.
func (l *Source) hold(ctx context.Context) {
	if l.read.policy == nil {
		return
	}
	for ctx.Err() == nil && pause(ctx, l.renew(ctx)) {
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseBound)
	defer cancel()
	if err := l.holder.Release(ctx); err != nil {
		l.log.DebugContext(ctx, "cannot release the limits file; its lease ends within a minute", "error", err)
	}
}

// renew makes it known once, and returns when to do so again.
func (l *Source) renew(ctx context.Context) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	became, v, again, err := l.holder.Renew(ctx, l.read.policy)
	switch {
	case errors.Is(err, policystore.ErrNotPermitted):
		return holdAgain
	case err != nil: // who follows says so
	case became == policystore.FileNew || became == policystore.FileAgain:
		l.became(ctx, became, v, l.fileBefore(ctx, v))
	default:
		l.older = became == policystore.FileSuperseded
	}
	return again
}

// fileBefore is the limits file that the version before had, nil where that is not known: then it is only not said what is gone.
func (l *Source) fileBefore(ctx context.Context, v policystore.Version) *policy.Policy {
	before, err := l.store.Version(ctx, v.Number-1)
	if err != nil {
		return nil
	}
	file, err := l.store.File(ctx, before)
	if err != nil {
		return nil
	}
	return file
}

// restore publishes the file again if Redis was emptied. A superseded file waits for the processes
// that have the newer one.
func (l *Source) restore(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone.IsZero() {
		l.gone = time.Now()
	}
	if l.read.policy == nil || l.older && time.Since(l.gone) < olderRestores || time.Now().Before(l.again) {
		return
	}
	err := l.publish(ctx, nil, nil)
	switch {
	case err == nil:
		l.log.WarnContext(ctx, "limits were missing in Redis; limits file published again", "file", l.read.path)
	case !l.told && ctx.Err() == nil:
		l.log.WarnContext(ctx, "limits are missing in Redis, and the limits file cannot be published; retrying", "error", err)
	}
	l.told = err != nil
	if errors.Is(err, policystore.ErrNotPermitted) {
		l.again = time.Now().Add(publishAgain)
	}
}
