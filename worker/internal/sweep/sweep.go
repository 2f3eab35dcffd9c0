// Package sweep looks after waiting tasks. One process for each provider reads them all every three minutes, a part a second. Tasks
// that were deleted or archived in asynq lose their places. Tasks that asynq would bring by itself before long, since all are later than
// expected, are put off: they could only go back again. Tasks whose wait is bounded are not, nor is any task while this process does not
// get to dispatch the provider. Waiting tasks get the rules of the tiers that their names have by then.
package sweep

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/inspect"
	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/internal/waitlist"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/internal/asynqx"
)

// Config configures Run. All fields are required.
type Config struct {
	Redis     redis.UniversalClient // of asynq's tasks
	Limiter   *throttle.Limiter     // what they wait for
	Bounded   bool                  // waits have an end, by the limits or by tasks themselves
	Providers func() []string       // that this process dispatches now
	Gone      func(waitlist.Ref)    // takes the place of a task
	Failed    func(kind string)     // called with "sweep" or "tiers" after an error, by several goroutines
}

const (
	// sweepEach is how often a part is read, sweepParts in how many parts all are at most, and pass how often all are.
	sweepEach, sweepParts = time.Second, 180
	pass                  = sweepParts * sweepEach
	// sweepLeast and sweepMost bound the tasks of a part.
	sweepLeast, sweepMost = 250, 10_000
	// claimFor is how long a process looks after a provider, beyond its next part, unless it claims it again, and how often the others
	// try. claimEach is how often it claims it while it reads.
	claimFor, claimEach = 30 * time.Second, 10 * time.Second
	// lookAgain is when a pass that missed tasks is made again.
	lookAgain = 10 * time.Second
	// soon is how long before asynq would bring a task that is put off, until putOff at least and putOffMost at most. Each task is read
	// again sooner than that, also after another process has taken over.
	soon, putOff, putOffMost = 5 * time.Minute, 7 * time.Minute, 10 * time.Minute
)

// swept is a provider that this process looks after, or tries to.
type swept struct {
	Config
	tasks   *inspect.Tasks
	mine    bool
	claimed time.Time
	began   time.Time             // the pass
	next    time.Time             // the next part, or the next try
	size    int                   // how many tasks to read at once
	counted time.Time             // when size was worked out
	tiered  time.Time             // when tiers were asked for
	asking  atomic.Bool           // they are
	missing map[waitlist.Ref]bool // tasks that were not found once, and whether that was in this pass
}

// Run sweeps until ctx ends.
func Run(ctx context.Context, cfg Config) {
	all := map[string]*swept{}
	var background sync.WaitGroup
	defer background.Wait()
	for asynqx.Sleep(ctx, sweepEach) {
		now := map[string]*swept{}
		for _, provider := range cfg.Providers() {
			if now[provider] = all[provider]; now[provider] == nil {
				now[provider] = &swept{
					Config: cfg, tasks: inspect.Of(cfg.Limiter.Waitlist()).Tasks(provider), missing: map[waitlist.Ref]bool{}, next: time.Now().Add(rand.N(claimEach)),
				}
			}
		}
		all = now
		for provider, sw := range all {
			if err := sw.part(ctx, provider); err != nil && ctx.Err() == nil {
				cfg.Failed("sweep")
			}
			sw.renewTiers(ctx, provider, &background)
		}
	}
}

// renewTiers asks for the tiers below which tasks of a provider wait, if this process looks after it. A user's database may be slow.
func (s *swept) renewTiers(ctx context.Context, provider string, background *sync.WaitGroup) {
	if !s.mine || time.Since(s.tiered) < s.Limiter.TierTTL() || !s.asking.CompareAndSwap(false, true) {
		return
	}
	s.tiered = time.Now()
	background.Go(func() {
		defer s.asking.Store(false)
		if err := s.Limiter.RenewTiers(ctx, provider); err != nil && ctx.Err() == nil {
			s.Failed("tiers")
		}
	})
}

// part reads the next waiting tasks of a provider, if this process looks after it.
func (s *swept) part(ctx context.Context, provider string) (err error) {
	now := time.Now()
	if now.Before(s.next) {
		return nil
	}
	if now.Sub(s.claimed) >= claimEach {
		if err := s.claim(ctx, provider, claimFor); err != nil {
			return err
		}
	}
	if !s.mine {
		s.next = now.Add(claimFor)
		return nil
	}
	if s.began.IsZero() {
		s.began = now
	}
	if time.Since(s.counted) > soon/2 {
		count, err := s.tasks.WaitingIn(ctx, provider, provider)
		if err != nil {
			return err
		}
		s.size, s.counted = int(min(max(sweepLeast, count[0].Tasks/sweepParts), sweepMost)), time.Now()
	}
	tasks, err := s.tasks.Next(ctx, s.size)
	if err != nil {
		return err
	}
	queues := map[string][]waitlist.Ref{}
	for _, ref := range tasks {
		queues[ref.Queue] = append(queues[ref.Queue], ref)
	}
	for name, refs := range queues {
		err = errors.Join(err, s.lookAfter(ctx, name, refs))
	}
	if !s.tasks.AtStart() {
		return err
	}
	rests := max(lookAgain, pass-rand.N(pass/10)-now.Sub(s.began))                  // all have been read
	maps.DeleteFunc(s.missing, func(_ waitlist.Ref, now bool) bool { return !now }) // those have left their lines since
	for ref := range s.missing {
		s.missing[ref] = false
	}
	if len(s.missing) > 0 {
		rests = lookAgain
	}
	s.began, s.next = time.Time{}, now.Add(rests)
	return errors.Join(err, s.claim(ctx, provider, rests+claimFor))
}

// claim has this process look after a provider for a time, if no other does.
func (s *swept) claim(ctx context.Context, provider string, stay time.Duration) (err error) {
	s.claimed = time.Now()
	s.mine, err = s.Limiter.Waitlist().Claim(ctx, provider, stay, s.mine)
	s.mine = s.mine && err == nil
	return err
}

func (s *swept) lookAfter(ctx context.Context, name string, tasks []waitlist.Ref) error {
	scores, err := s.Redis.ZMScore(ctx, asynqx.QueuePrefix(name)+"scheduled", idsOf(tasks)...).Result()
	if err != nil {
		return err
	}
	var near, rest []waitlist.Ref
	for i, score := range scores {
		switch {
		case score == 0:
			rest = append(rest, tasks[i])
		case time.Until(time.Unix(int64(score), 0)) < soon && !s.bounded(tasks[i].Scope):
			near = append(near, tasks[i])
		}
	}
	if len(near) > 0 {
		err = s.putOff(ctx, name, near)
	}
	if len(rest) == 0 {
		return err
	}
	return errors.Join(err, s.takeOut(ctx, name, rest))
}

// bounded reports whether a rule bounds the wait of a scope's tasks: asynq must bring each when its wait ends.
func (s *swept) bounded(scope string) bool {
	if !s.Bounded {
		return false
	}
	parsed, _ := policy.ParseScope(scope)
	rules, _ := s.Limiter.Policy().Match(parsed)
	return slices.ContainsFunc(rules, func(b policy.MatchedRule) bool { return b.Rule.MaxWait > 0 })
}

// putOff has asynq bring tasks of a queue later, except those that have a longest wait or a deadline of their own, and keep the locks
// of those that were enqueued with asynq's Unique option.
func (s *swept) putOff(ctx context.Context, name string, tasks []waitlist.Ref) error {
	read := make([]*redis.SliceCmd, len(tasks))
	err := redisread.FromMaster(ctx, s.Redis, func(pipe redis.Pipeliner) error {
		for i, ref := range tasks {
			read[i] = pipe.HMGet(ctx, asynqx.QueuePrefix(name)+"t:"+ref.ID, "msg", "unique_key")
		}
		return nil
	})
	if err != nil {
		return err
	}
	var off []redis.Z
	var locks []asynqx.Lock
	var until []time.Time
	for i, cmd := range read {
		message, _ := cmd.Val()[0].(string)
		if message == "" || strings.Contains(message, queue.HeaderDeadline) || s.Bounded && strings.Contains(message, queue.HeaderMaxWait) {
			continue
		}
		at := time.Now().Add(putOff + rand.N(putOffMost-putOff))
		off = append(off, redis.Z{Score: float64(asynqx.SecondAtOrAfter(at)), Member: tasks[i].ID})
		if key, _ := cmd.Val()[1].(string); key != "" {
			locks, until = append(locks, asynqx.Lock{Key: key, ID: tasks[i].ID}), append(until, at)
		}
	}
	if len(off) == 0 {
		return nil
	}
	if err := s.Redis.ZAddXX(ctx, asynqx.QueuePrefix(name)+"scheduled", off...).Err(); err != nil {
		return err
	}
	return asynqx.ExtendLocks(ctx, s.Redis, locks, until)
}

// takeOut takes places from tasks that no longer wait in asynq. One that is missing may be about to be enqueued: it loses its place
// if it is missing the next time, too.
func (s *swept) takeOut(ctx context.Context, name string, tasks []waitlist.Ref) error {
	states, err := asynqx.States(ctx, s.Redis, name, idsOf(tasks))
	if err != nil {
		return err
	}
	for i, state := range states {
		ref := tasks[i]
		now, before := s.missing[ref]
		switch {
		case state == "archived", state == "completed", state == "aggregating", state == "" && before && !now:
			delete(s.missing, ref)
			s.Gone(ref)
		case state == "" && len(s.missing) < sweepMost:
			s.missing[ref] = true
		default:
			delete(s.missing, ref)
		}
	}
	return nil
}

func idsOf(tasks []waitlist.Ref) []string {
	ids := make([]string, len(tasks))
	for i, ref := range tasks {
		ids[i] = ref.ID
	}
	return ids
}
