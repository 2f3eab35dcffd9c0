package policystore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// FollowConfig configures Follow. The zero FollowConfig is ready to use.
type FollowConfig struct {
	// Logger gets a line when a version comes into force, when a version cannot be decoded, and when Redis becomes unavailable or available
	// again. Defaults to none.
	Logger *slog.Logger
	// OnVersion receives each version that comes into force, and its policy; OnRefused the error of each that cannot be decoded. OnNone is
	// called at each poll that finds no limits in Redis: it was emptied. They are called in Follow's goroutine, and default to none.
	OnVersion func(Version, *policy.Policy)
	OnRefused func(error)
	OnNone    func()
	// App and Worker are the values of this process in Store.Processes.
	App    string
	Worker bool
}

// pollEvery is how often the store is asked for a new version: so often that each poll, and the time it takes, is well within Notice.
const pollEvery = 400 * time.Millisecond

// Follow keeps the limiter's policy up to date with the store until ctx ends. It puts each version in force at its moment, and removes what
// ends. While Redis does not answer, or has no limits or ones that cannot be decoded, the limiter keeps its policy. Store.Processes lists
// this process. Costs one round trip of one command each 400 ms, two each 15 seconds, one each day, and a few for each version.
func Follow(ctx context.Context, s *Store, l *throttle.Limiter, cfg FollowConfig) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	f := follower{store: s, limiter: l, cfg: cfg}
	self := newAnnouncer(s, Process{App: cfg.App, Worker: cfg.Worker, Follows: true})
	defer self.leave(ctx)
	defer f.renewing.Wait()
	for ctx.Err() == nil {
		f.enforce(ctx) // a version that comes into force makes room for the next
		f.poll(ctx)
		f.enforce(ctx)
		f.renew(ctx)
		self.renew(ctx, f.inForce)
		wait := pollEvery
		if !f.next.IsZero() {
			wait = max(time.Millisecond, min(wait, time.Until(f.next)))
		}
		sleep(ctx, wait)
	}
}

// sleep waits for a time, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// follower is the state of Follow. Times are this process's.
type follower struct {
	store   *Store
	limiter *throttle.Limiter
	cfg     FollowConfig

	polled   time.Time
	mark     string         // of the version that was read last, decoded or not
	read     *Version       // that version, if it was decoded
	base     *policy.Policy // the policy below its live changes
	offset   time.Duration  // the server's clock less this one
	next     time.Time      // when read comes into force, or something of it ends; zero for never
	begun    bool           // read is in force
	inForce  int64          // the version that came into force last
	failed   bool           // Redis did not answer
	renewing sync.WaitGroup // asks for tiers
	renewed  time.Time      // when the time to live of the limits was renewed
}

// renew renews the time to live of the limits at the start and once a day. A Redis user that may only read them renews nothing.
func (f *follower) renew(ctx context.Context) {
	if time.Since(f.renewed) >= renewLimitsEvery {
		f.renewed = time.Now()
		_ = f.store.rdb.PExpire(ctx, f.store.key, keptFor).Err()
	}
}

// poll reads the newest version, if there is another. It does not while a version is still to come into force: if changes came in quick
// succession, none ever would.
func (f *follower) poll(ctx context.Context) {
	if time.Since(f.polled) < pollEvery || f.read != nil && !f.begun {
		return
	}
	f.polled = time.Now()
	mark, err := f.store.mark(ctx, f.store.rdb)
	if err == nil && mark != "" && mark != f.mark {
		err = f.take(ctx, mark)
	}
	if err != nil {
		if !f.failed && ctx.Err() == nil {
			f.failed = true
			f.cfg.Logger.WarnContext(ctx, "cannot read the limits in Redis; keeping the current limits", "error", err)
		}
		return
	}
	if f.failed {
		f.failed = false
		f.cfg.Logger.InfoContext(ctx, "limits in Redis readable again")
	}
	if mark == "" {
		f.mark, f.read, f.next = "", nil, time.Time{}
		if f.cfg.OnNone != nil {
			f.cfg.OnNone()
		}
	}
}

// take reads a version, and notes when it comes into force. The error is that of a Redis that did not answer.
func (f *follower) take(ctx context.Context, mark string) error {
	clock := f.store.clock(ctx)
	asked := time.Now()
	now, err := serverTime(ctx, clock)
	if err != nil {
		return err
	}
	offset := now.Sub(asked.Add(time.Since(asked) / 2))
	r, err := f.store.current(ctx, f.store.rdb)
	var base *policy.Policy
	if err == nil {
		base, err = f.store.base(ctx, f.store.rdb, r.Version)
	}
	if err == nil {
		_, _, err = r.policyOver(base, r.InForce) // a damaged version is reported now, not when it comes into force
	}
	if errors.As(err, new(*DamagedError)) {
		f.mark = mark
		f.refuse(ctx, err)
		return nil
	}
	if err != nil {
		return err
	}
	f.mark, f.read, f.base, f.begun, f.offset = markOf(r.Version), &r.Version, base, false, offset
	f.next = r.InForce.Add(-offset)
	if latest := time.Now().Add(Notice); f.next.After(latest) {
		f.next = latest // another server has taken over, whose clock is behind
	}
	return nil
}

func (f *follower) refuse(ctx context.Context, err error) {
	f.read, f.next = nil, time.Time{}
	f.cfg.Logger.ErrorContext(ctx, "invalid limits in Redis; keeping the current limits", "error", err)
	if f.cfg.OnRefused != nil {
		f.cfg.OnRefused(err)
	}
}

// enforce puts the version that was read in force, or removes what has ended of it, when that is due.
func (f *follower) enforce(ctx context.Context) {
	if f.read == nil || f.next.IsZero() || time.Now().Before(f.next) {
		return
	}
	v := *f.read
	p, next, err := v.policyOver(f.base, time.Now().Add(f.offset))
	if err != nil {
		f.refuse(ctx, err)
		return
	}
	f.next = time.Time{}
	if !next.IsZero() {
		f.next = next.Add(-f.offset)
	}
	if !bytes.Equal(limitsyaml.Format(f.limiter.Policy()), limitsyaml.Format(p)) {
		f.limiter.SetPolicy(p)
	}
	if !f.begun && f.inForce > 0 {
		f.renewTiers(ctx, f.store.tiersSince(ctx, f.inForce, v))
	}
	if f.begun {
		f.cfg.Logger.InfoContext(ctx, "temporary limits expired", "version", v.Number)
	} else {
		f.cfg.Logger.InfoContext(ctx, "limits in force", "version", v.Number, "change", v.Change, "by", v.By)
	}
	f.begun, f.inForce = true, v.Number
	if f.cfg.OnVersion != nil {
		f.cfg.OnVersion(v, p)
	}
}

// renewTiers has the limiter ask for the tiers of names again, in the background. What fails is asked for after Config.TierTTL.
func (f *follower) renewTiers(ctx context.Context, names []string) {
	byProvider := map[string][]string{}
	for _, name := range names {
		provider, _, _ := strings.Cut(name, "/")
		byProvider[provider] = append(byProvider[provider], name)
	}
	for provider, names := range byProvider {
		f.renewing.Go(func() { _ = f.limiter.RenewTiers(ctx, provider, names...) })
	}
}

// Process is a running process that decides under limits.
type Process struct {
	// App is the name of its application. Follow and Announce default it to the program's name. They set ID, Host and PID, the process's id
	// there.
	App  string `json:"app"`
	Host string `json:"host"`
	PID  int    `json:"pid"`
	// Worker reports that the process runs tasks.
	Worker bool `json:"worker,omitempty"`
	// Follows reports that the process follows the limits in Redis. Version is the version in force there, 0 for none yet. A process that
	// does not follow keeps the limits that it began with.
	Follows bool   `json:"follows,omitempty"`
	Version int64  `json:"version,omitempty"`
	ID      string `json:"id"`
}

// Processes returns the processes that follow the limits, and those that announce limits of their own, by name. A process that died stays
// in the list for 45 seconds. A process that uses neither Follow nor Announce is not in it. Costs two round trips.
func (s *Store) Processes(ctx context.Context) ([]Process, error) {
	now, err := s.Time(ctx)
	if err != nil {
		return nil, err
	}
	all, err := redisread.One(ctx, s.rdb, func(p redis.Pipeliner) *redis.StringSliceCmd {
		return p.ZRangeByScore(ctx, s.processes, &redis.ZRangeBy{Min: "(" + strconv.FormatInt(now.UnixMilli(), 10), Max: "+inf"})
	})
	if err != nil {
		return nil, unavailable(ctx, "ask which processes follow", err)
	}
	known := map[string]Process{}
	for _, text := range all.Val() { // the newest registration of a process is the last
		var p Process
		if json.Unmarshal([]byte(text), &p) == nil {
			known[p.ID] = p
		}
	}
	return slices.SortedFunc(maps.Values(known), func(a, b Process) int {
		return cmp.Or(cmp.Compare(a.App, b.App), cmp.Compare(a.Host, b.Host), cmp.Compare(a.PID, b.PID), cmp.Compare(a.ID, b.ID))
	}), nil
}

// Announce publishes, until ctx ends, that a process has limits and does not follow those in Redis. Costs two round trips each 15 seconds.
func Announce(ctx context.Context, s *Store, p Process) {
	p.Follows = false
	a := newAnnouncer(s, p)
	defer a.leave(ctx)
	for ctx.Err() == nil {
		a.renew(ctx, 0)
		sleep(ctx, time.Until(a.due))
	}
}

const (
	renewLimitsEvery = 24 * time.Hour
	// renewEvery is how often a process registers, and lease how long that counts. deniedEvery is how often one tries that may not.
	renewEvery  = 15 * time.Second
	lease       = 3 * renewEvery
	deniedEvery = time.Hour
	leaveBound  = time.Second
)

// announcer registers one process, as a member of a sorted set by the end of its lease.
type announcer struct {
	store  *Store
	self   Process
	member string // that is registered, empty for none
	due    time.Time
}

func newAnnouncer(s *Store, p Process) *announcer {
	p.ID, p.PID = rand.Text(), os.Getpid()
	p.App = cmp.Or(p.App, strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"))
	host, _ := os.Hostname()
	p.Host = cmp.Or(host, "unknown")
	return &announcer{store: s, self: p}
}

// renew registers the process, if its version has changed or its registration is due.
func (a *announcer) renew(ctx context.Context, version int64) {
	if time.Now().Before(a.due) && version == a.self.Version {
		return
	}
	a.self.Version, a.due = version, time.Now().Add(renewEvery)
	if err := a.register(ctx); denied(err) {
		a.due = time.Now().Add(deniedEvery)
	}
}

// register registers the process in the place of its earlier state, and removes processes that died.
func (a *announcer) register(ctx context.Context) error {
	now, err := a.store.Time(ctx)
	if err != nil {
		return err
	}
	text, _ := json.Marshal(a.self) // a process always has a JSON
	_, err = a.store.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		if a.member != "" && a.member != string(text) {
			p.ZRem(ctx, a.store.processes, a.member)
		}
		p.ZAdd(ctx, a.store.processes, redis.Z{Score: float64(now.Add(lease).UnixMilli()), Member: text})
		p.ZRemRangeByScore(ctx, a.store.processes, "-inf", "("+strconv.FormatInt(now.UnixMilli(), 10))
		p.PExpire(ctx, a.store.processes, 2*lease)
		return nil
	})
	if err == nil {
		a.member = string(text)
	}
	return err
}

// leave removes the registration of a process that ends. If Redis does not answer, its lease ends it.
func (a *announcer) leave(ctx context.Context) {
	if a.member == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveBound)
	defer cancel()
	_ = a.store.rdb.ZRem(ctx, a.store.processes, a.member).Err()
}
