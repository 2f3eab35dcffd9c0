package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/throttle/policy"
)

// fault does something that a day may bring.
func (w *world) fault() {
	kind := w.random.IntN(8)
	w.Logf("%s: fault %d", time.Since(w.began), kind)
	switch kind {
	case 0: // a worker is killed
		w.kill()
	case 1: // a worker is restarted
		w.workers[0].stop()
		w.workers = w.workers[1:]
		w.start()
	case 2: // everything is away for a while
		w.stop()
		<-time.After(time.Duration(w.random.IntN(3600)) * time.Second)
		w.start()
		w.start()
	case 3: // somebody deletes waiting tasks
		w.each(func(info *asynq.TaskInfo) {
			if w.random.IntN(4) == 0 && w.looks.DeleteTask("default", info.ID) == nil {
				w.mu.Lock()
				w.gone[info.ID] = true
				w.mu.Unlock()
			}
		})
	case 4: // somebody runs all
		_, _ = w.looks.RunAllScheduledTasks("default")
		_, _ = w.looks.RunAllRetryTasks("default")
	case 5: // Redis is away for some seconds
		w.mu.Lock()
		w.down = true
		w.mu.Unlock()
		w.redis.SetError("LOADING it is away")
		<-time.After(time.Duration(1+w.random.IntN(20)) * time.Second)
		w.redis.SetError("")
		w.mu.Lock()
		w.down = false
		w.mu.Unlock()
	case 6: // somebody pauses a tenant, or everything
		w.pause()
	case 7: // somebody lowers limits for a while
		w.change()
	}
}

// pausing is a scope that was paused, and when, by the world's time.
type pausing struct {
	scope    string
	from, to time.Duration
}

// pause pauses something for a while in which traffic goes on, in all processes.
func (w *world) pause() {
	scope := []string{"p", fmt.Sprintf("p/t%d", w.random.IntN(50)), "q", "u"}[w.random.IntN(4)]
	one := pausing{scope: scope, from: time.Since(w.began)}
	w.meanwhile(func(limits map[string]policy.ScopeConfig) { pauseIn(limits, scope) })
	one.to = time.Since(w.began)
	w.pauses = append(w.pauses, one)
}

// meanwhile has all processes follow other limits for a while in which traffic goes on.
func (w *world) meanwhile(change func(limits map[string]policy.ScopeConfig)) {
	was := w.policy
	unmatched, limits := was.Limits()
	change(limits)
	var err error
	w.policy, err = policy.New(unmatched, limits)
	must(w, err)
	w.follow()
	for range 1 + w.random.IntN(5) {
		w.traffic()
		<-time.After(time.Duration(1+w.random.IntN(240)) * time.Second)
		w.hear()
	}
	w.policy = was
	w.follow()
}

func pauseIn(limits map[string]policy.ScopeConfig, scope string) {
	provider, tenant, nested := strings.Cut(scope, "/")
	n := limits[provider]
	if nested {
		n.Scopes[tenant] = policy.ScopeConfig{Pause: policy.PauseOn}
	} else {
		n.Pause = policy.PauseOn
	}
	limits[provider] = n
}

// follow has all processes take the policy over.
func (w *world) follow() {
	for _, l := range w.limiters {
		l.SetPolicy(w.policy)
	}
}

// judgePauses wants no start in a pause, but of those that were about to start.
func (w *world) judgePauses() {
	for _, one := range w.pauses {
		for _, c := range w.starts {
			if strings.HasPrefix(c.Scope+"/", one.scope+"/") && c.Arrived > one.from+300*time.Millisecond && c.Arrived < one.to {
				w.Errorf("%s ran at %s, in a pause of %s from %s to %s", c.ID, c.Arrived, one.scope, one.from, one.to)
			}
		}
	}
	w.Logf("%d pauses", len(w.pauses))
}

func (w *world) kill() {
	w.workers[0].die()
	w.workers = w.workers[1:]
	w.start()
}

// die cuts a process from Redis, for ever.
func (p *process) die() {
	p.w.mu.Lock()
	p.cut, p.w.crashed = true, true
	p.w.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	go p.stop() // which does not reach Redis
}
