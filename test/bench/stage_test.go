package bench

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/test/network"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// stage is where one contender does one scenario: a Redis of its own, the policy and, in scenarios that have one, an API.
type stage struct {
	scenario
	server *redistest.Server
	addr   func() string // of Redis, for one more process: as far away as the scenario says
	rdb    *redis.Client // beside it
	policy *policy.Policy
	at     *countapi.Server // the API; nil without one
	calls  *http.Client
	began  time.Time
	picked atomic.Int64
	starts recorder
	built  *built // of contenders that run outside; nil otherwise
}

// newStage sets the scenario up, its rules changed as the contender has them.
func newStage(b *testing.B, s scenario, change func(policy.Rule) policy.Rule) *stage {
	b.Helper()
	if change != nil {
		s.limits = adapted(s.limits, change)
	}
	policy, err := policy.New(policy.UnmatchedDeny, s.limits)
	must(b, err)
	st := &stage{scenario: s, policy: policy}
	if s.outside {
		st.server = redistest.NewServer(b, redistest.Options{Args: []string{"--appendonly", "yes"}})
	} else {
		st.server = redistest.NewServer(b)
	}
	st.addr = st.server.Addr
	if s.away > 0 {
		st.addr = func() string {
			p := network.NewProxy(b, st.server.Addr())
			p.Delay(s.away, s.jitter)
			return p.Addr()
		}
	}
	st.rdb = redis.NewClient(&redis.Options{Addr: st.server.Addr(), PoolSize: 2 * concurrency})
	st.starts.expect(s.watched())
	if s.api || s.outside {
		st.at, err = countapi.Start("127.0.0.1:0")
		must(b, err)
		st.calls = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * s.concurrency()}, Timeout: time.Minute}
	}
	if s.outside {
		st.built = newBuilt(b, policy, st.at, s.callLasts())
		st.built.keys = keyFiles(b, s)
	}
	return st
}

func (st *stage) end() {
	if st.at != nil {
		st.calls.CloseIdleConnections()
		_ = st.at.Close()
	}
	_ = st.rdb.Close()
	st.server.Kill9()
}

// run is what every handler does: it notes the start and calls the API.
func (st *stage) run(ctx context.Context, j job) error {
	st.starts.note(start{job: j, at: time.Now()})
	if st.lasts > 0 {
		<-time.After(st.lasts)
	}
	switch {
	case st.call != nil:
		return st.call(ctx, j.id)
	case st.at == nil:
		return nil
	}
	return callOf(ctx, st.calls, st.at.URL(j.scope), j.id)
}

// callOf calls the API for a task.
func callOf(ctx context.Context, client *http.Client, url, id string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Task-Id", id)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	if res.StatusCode >= http.StatusInternalServerError {
		err = errors.New(res.Status)
	}
	return errors.Join(err, res.Body.Close())
}

// start is the moment at which a task's run began.
type start struct {
	job
	at time.Time
}

// recorder notes starts until all tasks that are expected have one.
type recorder struct {
	mu   sync.Mutex
	want map[string]bool // ids that have not started
	all  []start

	done   chan struct{} // closed when there are none left
	finish func()
}

func (r *recorder) expect(tasks []job) {
	r.want, r.done = map[string]bool{}, make(chan struct{})
	r.finish = sync.OnceFunc(func() { close(r.done) })
	for _, j := range tasks {
		r.want[j.id] = true
	}
}

func (r *recorder) note(starts ...start) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range starts {
		r.all = append(r.all, s)
		delete(r.want, s.id)
	}
	if len(r.want) == 0 {
		r.finish()
	}
}

// sorted returns all starts in order.
func (r *recorder) sorted() []start {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Clone(r.all)
	slices.SortFunc(all, func(x, y start) int { return x.at.Compare(y.at) })
	return all
}

// missing returns the ids that are expected and have not started.
func (r *recorder) missing() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.want))
}

var (
	commandStat = regexp.MustCompile(`(?m)^cmdstat_([^:]+):calls=(\d+),usec=(\d+)`)
	// ownCommands are those that connect a client, or ask for the count.
	ownCommands = regexp.MustCompile(`^(info|hello|auth|ping|select|config|config\|.*|client|client\|.*|slowlog|slowlog\|.*)$`)
)

// ran is how often Redis has run a command, and for how long.
type ran struct {
	calls int64
	took  time.Duration
}

// commandStats returns what Redis has run since it was told to count anew, by command: what scripts call, too.
func commandStats(b *testing.B, rdb *redis.Client) map[string]ran {
	b.Helper()
	stats, err := rdb.Info(context.Background(), "commandstats").Result()
	must(b, err)
	all := map[string]ran{}
	for _, m := range commandStat.FindAllStringSubmatch(stats, -1) {
		calls, callsErr := strconv.ParseInt(m[2], 10, 64)
		us, err := strconv.ParseInt(m[3], 10, 64)
		must(b, errors.Join(callsErr, err))
		all[m[1]] = ran{calls, time.Duration(us) * time.Microsecond}
	}
	return all
}

// commandsOf returns how many commands Redis has run since it was told to count anew.
func commandsOf(b *testing.B, rdb *redis.Client) (total int64) {
	b.Helper()
	for name, one := range commandStats(b, rdb) {
		if !ownCommands.MatchString(name) {
			total += one.calls
		}
	}
	return total
}

// eachKey calls f with each of Headway's own keys in Redis.
func eachKey(b *testing.B, rdb *redis.Client, f func(key string)) {
	b.Helper()
	ctx := context.Background()
	keys := rdb.Scan(ctx, 0, "hw:*", 1000).Iterator()
	for keys.Next(ctx) {
		f(keys.Val())
	}
	must(b, keys.Err())
}

// ownMemory returns the bytes that Headway's own keys take in Redis.
func ownMemory(b *testing.B, rdb *redis.Client) (bytes int64) {
	b.Helper()
	eachKey(b, rdb, func(key string) {
		n, err := rdb.MemoryUsage(context.Background(), key, 0).Result()
		must(b, err)
		bytes += n
	})
	return bytes
}

// lost returns how many of the ids that have not started asynq does not have, and how many tasks are in its archive.
func (st *stage) lost(b *testing.B, ids []string) int {
	b.Helper()
	ctx := context.Background()
	archived, err := st.rdb.ZCard(ctx, "asynq:{default}:archived").Result()
	must(b, err)
	lost := int(archived)
	for chunk := range slices.Chunk(ids, 1000) {
		states := make([]*redis.StringCmd, len(chunk))
		_, err := st.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, id := range chunk {
				states[i] = pipe.HGet(ctx, "asynq:{default}:t:"+id, "state")
			}
			return nil
		})
		if err != nil && !strings.Contains(err.Error(), redis.Nil.Error()) {
			b.Fatal(err)
		}
		for _, state := range states {
			if s := state.Val(); s == "" || s == "completed" {
				lost++
			}
		}
	}
	return lost
}
