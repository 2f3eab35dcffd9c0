package policystore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// Config configures a Store. The zero Config is ready to use.
type Config struct {
	// Prefix begins the keys: letters, digits, '-', '_' and '.'. Defaults to "hw".
	Prefix string
}

// Store keeps the versions of one policy in one key of Redis, and the processes that use them in
// others. It is safe for concurrent use, by any number of processes. Its methods return ctx's error,
// one that wraps throttle.ErrUnavailable, or those that each of them documents. Methods that change
// the limits also return one that wraps ErrNotPermitted.
type Store struct {
	rdb       redis.UniversalClient
	key       string
	processes string // the key of those that decide under limits
	most      int    // bytes that the history may have
}

// New returns a Store in rdb. It does no I/O and does not take ownership of rdb.
func New(rdb redis.UniversalClient, cfg Config) *Store {
	if cfg.Prefix == "" {
		cfg.Prefix = "hw"
	}
	return &Store{rdb: rdb, key: cfg.Prefix + ":limits", processes: cfg.Prefix + ":processes", most: keptBytes}
}

const (
	// Notice is the time from the writing of a version until it comes into force: all processes have read
	// it by then, and none still grants under the one before.
	Notice = 700 * time.Millisecond
	// Kept is how many versions the history has at most, and keptBytes how large it may
	// get: the oldest go first.
	Kept      = 100
	keptBytes = 16 << 20

	// fileStays is how long the limits file of workers stands when none runs any more, and
	// changesStay how long all else does, which has no other copy.
	fileStays   = 24 * time.Hour
	changesStay = 366 * 24 * time.Hour
)

// The fields of the hash: what stands for the version that was written last; each version
// that is kept, by its number; each source, by its sum.
const (
	currentField  = "version"
	versionField  = "v:"
	sourceField   = "s:"
	versionFormat = 10
)

// ErrNone is the error for a Redis without limits: none were stored or published.
var ErrNone = errors.New("policystore: there are no limits in Redis")

// VersionError is the error for a version that is not kept any more, or never existed.
type VersionError struct{ Number int64 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("policystore: version %d of the limits is not kept any more, or never was", e.Number)
}

// ConflictError is the error of a change that another change preceded. Nothing was changed.
type ConflictError struct {
	// Want is the version that the change was meant for, 0 if none was named.
	Want int64
	// Now is the current version.
	Now Version
}

func (e *ConflictError) Error() string {
	now := fmt.Sprintf("version %d, %q by %q at %s", e.Now.Number, e.Now.Change, e.Now.By, e.Now.At.UTC().Format(time.RFC3339))
	if e.Want > 0 {
		return fmt.Sprintf("policystore: meant for version %d, and the limits are at %s; nothing was changed", e.Want, now)
	}
	return "policystore: somebody else has changed the same meanwhile: " + now + "; nothing was changed"
}

// DamagedError is the error for limits in Redis that cannot be decoded: a later release wrote them, or
// another program.
type DamagedError struct {
	Version int64 // 0 when not even that is known
	Err     error
}

func (e *DamagedError) Error() string {
	if e.Version == 0 {
		return fmt.Sprintf("policystore: the limits in Redis are damaged: %v", e.Err)
	}
	return fmt.Sprintf("policystore: version %d of the limits in Redis: %v", e.Version, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// ErrNotPermitted is the error for a Redis user that may not change the limits: it lacks a command, or
// may only read the key.
var ErrNotPermitted = errors.New("policystore: the Redis user may not change the limits")

// refused reports whether Redis denied its user a permission.
func refused(err error) bool { return redis.HasErrorPrefix(err, "NOPERM") }

// unavailable says that Redis could not be asked. A dead context is the context's own
// error.
func unavailable(ctx context.Context, doing string, err error) error {
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	return fmt.Errorf("%w: %s the limits: %w", throttle.ErrUnavailable, doing, err)
}

// markOf is what stands for the version that was written last: its number and its Hash. Numbers
// alone would not do, since they begin anew where Redis was emptied.
func markOf(number int64, text string) string {
	return strconv.FormatInt(number, versionFormat) + ":" + sumOf([]byte(text))
}

// mark returns it, "" for none. Costs one round trip.
func (s *Store) mark(ctx context.Context, c redis.Cmdable) (string, error) {
	text, err := s.field(ctx, c, currentField).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", unavailable(ctx, "ask for", err)
	}
	return text, nil
}

func readMark(text string) (number int64, hash string, err error) {
	digits, hash, _ := strings.Cut(text, ":")
	number, err = strconv.ParseInt(digits, versionFormat, 64)
	if err != nil || number < 1 {
		return 0, "", &DamagedError{Err: fmt.Errorf("its version is %.40q", text)}
	}
	return number, hash, nil
}

// Current returns the version that was written last. The error is ErrNone when there is
// none, or a *DamagedError. Costs two round trips.
func (s *Store) Current(ctx context.Context) (Version, error) { return s.current(ctx, s.rdb) }

// Newest returns the number of the version that was written last, 0 if there is none. It reads no text of a version. Costs one
// round trip. The error is a *DamagedError, or Redis's.
func (s *Store) Newest(ctx context.Context) (int64, error) {
	mark, err := s.mark(ctx, s.rdb)
	if err != nil || mark == "" {
		return 0, err
	}
	number, _, err := readMark(mark)
	return number, err
}

func (s *Store) current(ctx context.Context, c redis.Cmdable) (Version, error) {
	mark, err := s.mark(ctx, c)
	if err != nil {
		return Version{}, err
	}
	if mark == "" {
		return Version{}, ErrNone
	}
	return s.marked(ctx, c, mark)
}

// marked reads the version that a mark stands for.
func (s *Store) marked(ctx context.Context, c redis.Cmdable, mark string) (Version, error) {
	n, _, err := readMark(mark)
	if err != nil {
		return Version{}, err
	}
	v, err := s.version(ctx, c, n)
	if errors.As(err, new(*VersionError)) {
		err = &DamagedError{n, errors.New("it is not there")}
	}
	return v, err
}

// Version returns one version. The error is a *VersionError if it is not kept, or a *DamagedError.
// Costs one round trip.
func (s *Store) Version(ctx context.Context, number int64) (Version, error) {
	return s.version(ctx, s.rdb, number)
}

func (s *Store) version(ctx context.Context, c redis.Cmdable, number int64) (Version, error) {
	text, err := s.field(ctx, c, fieldOf(number)).Result()
	if errors.Is(err, redis.Nil) {
		return Version{}, &VersionError{number}
	} else if err != nil {
		return Version{}, unavailable(ctx, "read", err)
	}
	return readVersion(number, text)
}

// field asks for a field of the store: within a transaction of its own, or the master.
func (s *Store) field(ctx context.Context, c redis.Cmdable, name string) (text *redis.StringCmd) {
	if c != redis.Cmdable(s.rdb) {
		return c.HGet(ctx, s.key, name)
	}
	_ = redisread.FromMaster(ctx, s.rdb, func(pipe redis.Pipeliner) error {
		text = pipe.HGet(ctx, s.key, name)
		return nil
	}) // the command has its error
	return text
}

func readVersion(number int64, text string) (Version, error) {
	v, err := decode(text)
	if err == nil && v.Number != number {
		err = fmt.Errorf("it says that it is version %d", v.Number)
	}
	if err != nil {
		return Version{}, &DamagedError{number, err}
	}
	v.Hash = sumOf([]byte(text))
	return v, nil
}

func fieldOf(number int64) string { return versionField + strconv.FormatInt(number, versionFormat) }

// History returns the versions that are kept, newest last. A version that cannot be decoded has only a
// number. Costs one round trip.
func (s *Store) History(ctx context.Context) ([]Version, error) {
	all, err := s.all(ctx)
	if err != nil {
		return nil, err
	}
	var list []Version
	for field, text := range all {
		digits, is := strings.CutPrefix(field, versionField)
		number, err := strconv.ParseInt(digits, versionFormat, 64)
		if !is || err != nil {
			continue
		}
		v, err := readVersion(number, text)
		if err != nil {
			v = Version{Number: number}
		}
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b Version) int { return int(a.Number - b.Number) })
	return list, nil
}

// Policy returns the policy of a version at a time, and when it changes by itself, or zero for never.
// The error is a *DamagedError if the version cannot be decoded, or wraps a *policy.Error. Costs a
// round trip for each source.
func (s *Store) Policy(ctx context.Context, v Version, at time.Time) (*policy.Policy, time.Time, error) {
	base, err := s.base(ctx, s.rdb, v)
	if err != nil {
		return nil, time.Time{}, err
	}
	p, next, err := v.policy(base, at)
	if err != nil {
		return nil, time.Time{}, &DamagedError{v.Number, err}
	}
	return p, next, nil
}

// Now returns the policy that is in force. Its errors are those of Current and Policy.
// Costs a few round trips.
func (s *Store) Now(ctx context.Context) (*policy.Policy, error) {
	v, err := s.Current(ctx)
	if err != nil {
		return nil, err
	}
	now, err := s.Time(ctx)
	if err != nil {
		return nil, err
	}
	p, _, err := s.Policy(ctx, v, now)
	return p, err
}

// File returns the limits file of a version, even if another policy was in force, or nil if there was
// none. The error is a *DamagedError, or those of Store. Costs one round trip.
func (s *Store) File(ctx context.Context, v Version) (*policy.Policy, error) {
	if v.File == nil {
		return nil, nil
	}
	return s.base(ctx, s.rdb, Version{Number: v.Number, File: v.File})
}

// base is the policy that a version's rules lie over.
func (s *Store) base(ctx context.Context, c redis.Cmdable, v Version) (*policy.Policy, error) {
	source := v.source()
	if source == nil {
		return policy.New("", nil)
	}
	text, err := s.field(ctx, c, sourceField+source.Sum).Bytes()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, &DamagedError{v.Number, errors.New("its text is not there")}
	case err != nil:
		return nil, unavailable(ctx, "read", err)
	}
	return readSource(v.Number, source.Sum, "Redis key "+s.key, text)
}

// readSource reads the text of a source by its sum. name is what errors call it.
func readSource(number int64, sum, name string, text []byte) (*policy.Policy, error) {
	if sumOf(text) != sum {
		return nil, &DamagedError{number, errors.New("its text is another one")}
	}
	p, err := limitsyaml.Parse(name, text)
	if err != nil {
		return nil, &DamagedError{number, err}
	}
	return p, nil
}

// clock is what has the one clock that counts: on a cluster, the server of the key.
func (s *Store) clock(ctx context.Context) redis.Cmdable {
	if cluster, is := s.rdb.(*redis.ClusterClient); is {
		if master, err := cluster.MasterForKey(ctx, s.key); err == nil {
			return master
		}
	}
	return s.rdb
}

// now is the Redis server's time.
func (*Store) now(ctx context.Context, c redis.Cmdable) (time.Time, error) {
	at, err := c.Time(ctx).Result()
	if err != nil {
		return time.Time{}, unavailable(ctx, "ask for the time of", err)
	}
	return at.UTC(), nil
}

// Time returns the Redis server's time, which decides when versions come into force and temporary
// changes end. Costs one round trip.
func (s *Store) Time(ctx context.Context) (time.Time, error) { return s.now(ctx, s.clock(ctx)) }

// InForceIn returns the time until a version comes into force, 0 if it has. Costs one round trip.
func (s *Store) InForceIn(ctx context.Context, v Version) (time.Duration, error) {
	now, err := s.Time(ctx)
	return max(0, v.InForce.Sub(now)), err
}

// Keep renews the expiry of the limits in Redis. The error is ErrNotPermitted, or those of Store.
// Costs two round trips.
func (s *Store) Keep(ctx context.Context) error {
	v, err := s.Current(ctx)
	if errors.Is(err, ErrNone) || errors.As(err, new(*DamagedError)) {
		return nil
	} else if err != nil {
		return err
	}
	return s.renew(ctx, v)
}

func (s *Store) renew(ctx context.Context, v Version) error {
	if err := s.rdb.PExpire(ctx, s.key, v.stays()).Err(); err != nil {
		if refused(err) {
			return fmt.Errorf("%w: %w", ErrNotPermitted, err)
		}
		return unavailable(ctx, "keep", err)
	}
	return nil
}

// left returns the time until the limits in Redis expire without a renewal.
func (s *Store) left(ctx context.Context) (left time.Duration, err error) {
	var ttl *redis.DurationCmd
	err = redisread.FromMaster(ctx, s.rdb, func(pipe redis.Pipeliner) error {
		ttl = pipe.PTTL(ctx, s.key)
		return nil
	})
	return ttl.Val(), err
}

// stays returns how long an unused version is kept.
func (v Version) stays() time.Duration {
	if v.Edited {
		return changesStay
	}
	return fileStays
}
