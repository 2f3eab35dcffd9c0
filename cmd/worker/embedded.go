package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// embedded is a Redis inside this process. Its keys expire by the clock, and nothing is kept on disk.
//
// miniredis can move its own clock, but then walks over all keys at every access: 8 ms with 50,000, a dozen times
// a script. So time moves in ticks, and a TTL that is set between two ticks is extended by the part of the tick that
// is over: a key lives up to a tick longer than its TTL, and never shorter.
type embedded struct {
	mini    *miniredis.Miniredis
	port    net.Listener
	serving sync.WaitGroup
	busy    sync.Map // *server.Peer whose command runs
	log     *slog.Logger
	began   time.Time
	ticked  atomic.Int64 // when TTLs were last moved, since began
	stop    chan struct{}
	stopped chan struct{}
}

const (
	minTick   = 10 * time.Millisecond
	tickShare = 20 // bounds the cost of expiry to a twentieth of a core
)

// startEmbedded listens on addr, which must be a loopback address: the server has no password.
func startEmbedded(addr string, log *slog.Logger) (*embedded, error) {
	e := &embedded{mini: miniredis.NewMiniRedis(), log: log, began: time.Now(), stop: make(chan struct{}), stopped: make(chan struct{})}
	first, err := e.mini.Dial() // starts it without a port of its own
	if err == nil {
		err = first.Close()
	}
	if err == nil {
		e.port, err = net.Listen("tcp", addr)
	}
	if err != nil {
		e.mini.Close()
		return nil, listenError(err, addr, "the embedded Redis",
			"another worker? stop it, share its server with -redis redis://"+addr+", or give -redis URL")
	}
	e.mini.Server().SetPreHook(e.dispatch)
	e.serving.Go(e.accept)
	go e.tick()
	return e, nil
}

// accept serves clients until the port is closed.
func (e *embedded) accept() {
	for {
		c, err := e.port.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no file descriptor is left, say
			select {
			case <-e.stop:
				return
			case <-time.After(minTick):
			}
		default:
			e.mini.Server().ServeConn(newSoundConn(c))
		}
	}
}

// dispatch runs a command. A panic of miniredis becomes the command's error.
func (e *embedded) dispatch(peer *server.Peer, command string, args ...string) (done bool) {
	if _, running := e.busy.LoadOrStore(peer, true); running {
		return false // it is called by itself, below
	}
	defer e.busy.Delete(peer)
	defer func() {
		if x := recover(); x != nil {
			e.log.Error("the embedded Redis failed to run a command", "command", command, "args", len(args), "panic", fmt.Sprint(x))
			peer.WriteError("ERR the embedded Redis failed at this command")
			done = true
		}
	}()
	addToTTL(command, args, e.sinceTick())
	e.mini.Server().Dispatch(peer, append([]string{command}, args...))
	return true
}

func (e *embedded) url() string { return "redis://" + e.addr() }

func (e *embedded) addr() string { return e.port.Addr().String() }

// close ends the server; all it kept is gone.
func (e *embedded) close() {
	close(e.stop)
	<-e.stopped
	_ = e.port.Close()
	e.serving.Wait()
	e.mini.Close()
}

func (e *embedded) sinceTick() time.Duration {
	return time.Since(e.began) - time.Duration(e.ticked.Load())
}

func (e *embedded) tick() {
	defer close(e.stopped)
	timer := time.NewTimer(minTick)
	defer timer.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-timer.C:
		}
		start := time.Since(e.began)
		e.mini.FastForward(e.sinceTick())
		// Last, so that a TTL that is set meanwhile is extended by too much, and never by too little.
		e.ticked.Store(int64(start))
		timer.Reset(max(minTick, tickShare*(time.Since(e.began)-start)))
	}
}

// addToTTL adds d to the time to live that a command sets, in place. SET key value EX s becomes PX, so that no whole
// second is added.
func addToTTL(command string, args []string, d time.Duration) {
	ms := int64((d + time.Millisecond - 1) / time.Millisecond)
	switch command {
	case "PEXPIRE", "PSETEX", "PEXPIREAT":
		addTo(args, 1, ms)
	case "EXPIRE", "SETEX", "EXPIREAT":
		addTo(args, 1, int64((d+time.Second-1)/time.Second))
	case "SET":
		for i := 2; i+1 < len(args); i++ {
			switch strings.ToUpper(args[i]) {
			case "EX":
				n, err := strconv.ParseInt(args[i+1], 10, 64)
				if err != nil || n <= 0 || n > int64(time.Duration(1<<62)/time.Second) {
					return
				}
				args[i], args[i+1] = "PX", strconv.FormatInt(n*1000, 10)
				fallthrough
			case "PX":
				addTo(args, i+1, ms)
				return
			}
		}
	}
}

// addTo adds to a positive number. Others delete the key, or Redis refuses them.
func addTo(args []string, i int, n int64) {
	if i >= len(args) {
		return
	}
	if v, err := strconv.ParseInt(args[i], 10, 64); err == nil && v > 0 {
		args[i] = strconv.FormatInt(v+n, 10)
	}
}
