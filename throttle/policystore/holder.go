package policystore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

const (
	// renewLease is how often a process says that it is there, and lease how long that is believed.
	renewLease = 15 * time.Second
	lease      = 3 * renewLease
	// vacantFor is how long a running process must see no process with the file that counts before its
	// own takes the place: a process that restarts, or that waits for Redis to answer again, is back by
	// then.
	vacantFor = 2 * renewLease
	// traceStays is how long a lease that has ended is kept: it tells a process that died, or lost its
	// way to Redis, from one that was shut down.
	traceStays = time.Hour
	// tidyEach is how often a process takes away leases of others that have ended, and has the key stay.
	tidyEach = 5 * time.Minute
	// leaveBound is how long a process takes at most, when it ends, to say that it leaves.
	leaveBound = time.Second
)

// Holder publishes the limits file of a process, and registers in Redis that the process has it. Of
// the files of running processes, the one that came into force last counts, and a new file comes into
// force at once. It is safe for concurrent use.
type Holder struct {
	store *Store
	by    string
	id    string

	mu     sync.Mutex
	sum    string    // of the file that Redis knows this process to have, empty for none
	stands string    // the mark of the version that was seen to rest on it
	vacant string    // the sum of the file that counts, where nobody was seen with it
	since  time.Time // and since when
	looked time.Time // when that was looked at last
	tidy   tidying
}

// tidying is when a process has taken away last what others have left, and had the key stay.
type tidying struct{ at time.Time }

func (t *tidying) due() bool { return t.at.IsZero() || time.Since(t.at) >= tidyEach }

// NewHolder returns a Holder of this process, with by as its name in the history. It does no I/O.
func NewHolder(s *Store, by string) *Holder { return &Holder{store: s, by: by, id: rand.Text()} }

// Publish makes p the limits file of this process. p counts if it is new, or if it follows a file that
// counts: before is this process's file before it was edited, or nil for a process that has just
// started. A file that was in force before, and superseded since, counts again at once if the
// processes with the file that counts were shut down; otherwise Renew handles that. The error is one
// of Store. Costs some round trips.
func (h *Holder) Publish(ctx context.Context, p, before *policy.Policy) (Published, Version, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum := sumOf(limitsyaml.Format(p))
	now, err := h.announce(ctx, sum)
	if err != nil {
		return FileStands, Version{}, err
	}
	became, v, err := h.store.publishFile(ctx, h.by, p, before, "")
	if err != nil || became != FileSuperseded || before != nil {
		return became, v, err
	}
	held, err := h.store.held(ctx)
	if err != nil {
		return became, v, err
	}
	if _, traced := held[v.File.Sum]; traced || !held.next(v, sum, now) {
		return became, v, nil
	}
	return h.store.publishFile(ctx, h.by, p, nil, v.File.Sum)
}

// Renew registers for another 45 seconds that this process has the file p. It makes p count again if
// for 30 seconds no process had the file that counts. Call it again after the returned duration, 15
// seconds at most. The error is ErrNone if there are no limits in Redis, a *DamagedError, or one of
// Store. Costs three round trips, and two more while another file counts.
func (h *Holder) Renew(ctx context.Context, p *policy.Policy) (Published, Version, time.Duration, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	became, v, again, err := h.renew(ctx, p)
	if err != nil {
		h.since = time.Time{} // others may have been cut off too
	}
	return became, v, again, err
}

func (h *Holder) renew(ctx context.Context, p *policy.Policy) (Published, Version, time.Duration, error) {
	sum := sumOf(limitsyaml.Format(p))
	now, err := h.announce(ctx, sum)
	if err != nil {
		return FileStands, Version{}, renewLease, err
	}
	mark, err := h.store.mark(ctx, h.store.rdb)
	switch {
	case err != nil:
		return FileStands, Version{}, renewLease, err
	case mark == "":
		return FileStands, Version{}, renewLease, ErrNone
	case mark == h.stands:
		return FileStands, Version{}, renewLease, nil
	}
	v, err := h.store.marked(ctx, h.store.rdb, mark)
	if err != nil {
		return FileStands, Version{}, renewLease, err
	}
	if v.fileSum() == sum {
		h.stands, h.since = mark, time.Time{}
		return FileStands, v, renewLease, nil
	}
	held, err := h.store.held(ctx)
	if err != nil {
		return FileSuperseded, v, renewLease, err
	}
	wait := h.wait(v.fileSum(), held, now)
	if wait > 0 || !held.next(v, sum, now) {
		return FileSuperseded, v, min(renewLease, max(time.Millisecond, wait)), nil
	}
	became, v, err := h.store.publishFile(ctx, h.by, p, nil, v.fileSum())
	return became, v, renewLease, err
}

// wait returns when to check again whether no process has the file that counts. It is 0 if none has
// had it for long enough.
func (h *Holder) wait(counts string, held leases, now time.Time) time.Duration {
	last := h.looked
	h.looked = time.Now()
	if left := held[counts].Sub(now); left > 0 {
		h.since = time.Time{}
		return left
	}
	if h.since.IsZero() || h.vacant != counts || h.looked.Sub(last) > lease { // this process stood still, and so may others have
		h.vacant, h.since = counts, h.looked
	}
	return h.since.Add(vacantFor).Sub(h.looked)
}

// Release withdraws this process's file at shutdown. Costs one round trip.
func (h *Holder) Release(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sum == "" {
		return nil
	}
	err := h.store.rdb.ZRem(ctx, h.store.filesKey(), h.member(h.sum)).Err()
	h.sum = ""
	return err
}

// announce says that this process has a file. It returns the time of the Redis server.
func (h *Holder) announce(ctx context.Context, sum string) (time.Time, error) {
	var before string
	if h.sum != "" && h.sum != sum {
		before = h.member(h.sum)
	}
	if h.sum != sum {
		h.stands, h.since = "", time.Time{}
	}
	now, err := h.store.leaseOut(ctx, h.store.filesKey(), h.member(sum), before, traceStays, &h.tidy)
	if err == nil {
		h.sum = sum
	}
	return now, err
}

func (h *Holder) member(sum string) string { return sum + " " + h.id }

func (s *Store) filesKey() string { return s.key + ":files" }

// leaseOut has a member of a key stand for lease, in the place of another one, which may be empty, and
// now and then takes away what ended before stays. It returns the time of the Redis server. Costs two round trips.
func (s *Store) leaseOut(ctx context.Context, key, member, before string, stays time.Duration, tidy *tidying) (time.Time, error) {
	now, err := s.now(ctx, s.clock(ctx))
	if err != nil {
		return now, err
	}
	until := redis.Z{Score: float64(now.Add(lease).UnixMilli()), Member: member}
	if before == "" && !tidy.due() {
		// XX: a Redis that was emptied since gets no member without an expiry of its key.
		renewed, err := s.rdb.ZAddArgs(ctx, key, redis.ZAddArgs{XX: true, Ch: true, Members: []redis.Z{until}}).Result()
		if err != nil || renewed > 0 {
			return now, notSaid(ctx, err)
		}
	}
	_, err = s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ZAdd(ctx, key, until)
		if before != "" {
			p.ZRem(ctx, key, before)
		}
		p.ZRemRangeByScore(ctx, key, "-inf", "("+strconv.FormatInt(now.Add(-stays).UnixMilli(), 10))
		p.PExpire(ctx, key, stays+2*lease+2*tidyEach)
		return nil
	})
	*tidy = tidying{}
	if err == nil {
		tidy.at = time.Now()
	}
	return now, notSaid(ctx, err)
}

// notSaid is the error of a process that could not say what it has.
func notSaid(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case refused(err):
		return fmt.Errorf("%w: %w", ErrNotPermitted, err)
	}
	return unavailable(ctx, "say who follows", err)
}

// leases are until when some process says to have each file, by its sum; those that have ended too.
type leases map[string]time.Time

// held returns the leases of limits files.
func (s *Store) held(ctx context.Context) (leases, error) {
	var all *redis.ZSliceCmd
	err := redisread.FromMaster(ctx, s.rdb, func(p redis.Pipeliner) error {
		all = p.ZRangeWithScores(ctx, s.filesKey(), 0, -1)
		return nil
	})
	if err != nil {
		return nil, unavailable(ctx, "ask who follows", err)
	}
	held := leases{}
	for _, z := range all.Val() { // in the order of their ends
		member, _ := z.Member.(string)
		sum, _, _ := strings.Cut(member, " ")
		held[sum] = time.UnixMilli(int64(z.Score))
	}
	return held, nil
}

// next reports whether a file comes after the one that counts: no process has one that was in force
// later.
func (l leases) next(v Version, sum string, now time.Time) bool {
	for _, known := range slices.Backward(v.Files) {
		switch {
		case known == sum:
			return true
		case known != v.fileSum() && l[known].After(now):
			return false
		}
	}
	return true
}

// fileSum names the file of a version, empty for none.
func (v Version) fileSum() string {
	if v.File == nil {
		return ""
	}
	return v.File.Sum
}

// HasFile reports whether p is the limits file that counts, even if another policy was imported in its
// place.
func (v Version) HasFile(p *policy.Policy) bool { return v.fileSum() == sumOf(limitsyaml.Format(p)) }

// Published is the outcome of publishing a file.
type Published int

const (
	// FileStands means that the file is the one that was published last.
	FileStands Published = iota
	// FileNew means that the file has become that one.
	FileNew
	// FileSuperseded means that the file was published before, and another one since: a worker that
	// starts with an older file changes nothing while others have the newer one.
	FileSuperseded
	// FileAgain means that the file was superseded, and counts again: no process has the newer one any
	// more.
	FileAgain
)

// PublishFile makes p the limits file that counts. A file that was published before, and superseded
// since, changes nothing, unless it follows the file that is in Redis: before is the same worker's
// file before it was edited, or nil for one that has just started. It is for programs that have the
// file only during this call: the file of a running process may replace it. Long-running processes use
// a Holder. The error is one of Store.
func (s *Store) PublishFile(ctx context.Context, by string, p, before *policy.Policy) (Published, Version, error) {
	return s.publishFile(ctx, by, p, before, "")
}

// publishFile publishes a file. vacant is the sum of the one that counts if no process has that any more.
func (s *Store) publishFile(ctx context.Context, by string, p, before *policy.Policy, vacant string) (Published, Version, error) {
	out := FileStands
	v, err := s.edit(ctx, Edit{By: by}, func(v *draft, _ *policy.Policy, now time.Time) error {
		sum := sumOf(limitsyaml.Format(p))
		if out = becomes(v, sum, before, vacant); out == FileStands || out == FileSuperseded {
			return ErrUnchanged
		}
		v.File = v.bring(p, Edit{By: by}, now)
		v.Files = append(slices.DeleteFunc(v.Files, func(known string) bool { return known == sum }), sum)
		v.Files = v.Files[max(0, len(v.Files)-keptFiles):]
		v.Change = "publish a limits file"
		if out == FileAgain {
			v.Change = "publish a limits file again: no process has the newer one any more"
		}
		return nil
	})
	if errors.Is(err, ErrUnchanged) {
		err = nil
	}
	return out, v.Version, err
}

// becomes returns the outcome of publishing a file over the current version.
func becomes(v *draft, sum string, before *policy.Policy, vacant string) Published {
	stands := v.fileSum()
	switch {
	case stands == sum:
		return FileStands
	case stands == "":
		return FileNew
	case vacant != "" && stands == vacant:
		return FileAgain
	case vacant != "": // another process was faster
		return FileSuperseded
	case before != nil && stands == sumOf(limitsyaml.Format(before)):
		return FileNew
	case slices.Contains(v.Files, sum):
		return FileSuperseded
	}
	return FileNew
}

// keptFiles is how many files are known again.
const keptFiles = 200
