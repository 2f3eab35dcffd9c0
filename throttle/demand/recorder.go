package demand

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrFull says that an output takes no more.
var ErrFull = errors.New("demand: the record has its largest size")

// Config configures NewRecorder. Out is required.
type Config struct {
	// Out takes the record, in blocks of whole lines, each a member of gzip. A Recorder writes one after the other. After ErrFull it writes
	// no more.
	Out io.Writer
	// Sample is the part of the tenants whose tasks are recorded, above 0 and at most 1. Defaults to 1.
	Sample float64
	// Logger receives a line when the record is full, and when it cannot be written. Defaults to slog.Default.
	Logger *slog.Logger
}

const (
	maxWaiting = 20_000          // lines that wait to be written
	blockLines = 1000            // lines of a block
	blockStays = 5 * time.Second // how long a block waits for more lines
	processes  = time.Minute     // between two lines of a process
	streamStay = 8 * 24 * time.Hour
	blockBytes = 50 << 10 // of a block with all its lines, in Redis
)

// Recorder writes a record. It is safe for concurrent use.
type Recorder struct {
	cfg     Config
	least   uint64 // hashes of tenants below it are recorded
	waiting chan Task
	lost    atomic.Int64
	stopped atomic.Bool

	name   string
	writes bool // the last block was written
}

// NewRecorder returns a Recorder. It does no I/O. The error names the field that is wrong.
func NewRecorder(cfg Config) (*Recorder, error) {
	cfg.Sample = cmp.Or(cfg.Sample, 1)
	switch {
	case cfg.Out == nil:
		return nil, errors.New("demand: Config.Out is nil; see OpenFile and ToRedis")
	case !(cfg.Sample > 0 && cfg.Sample <= 1):
		return nil, fmt.Errorf("demand: Config.Sample is %v; it is above 0 and at most 1", cfg.Sample)
	}
	host, _ := os.Hostname()
	r := &Recorder{cfg: cfg, least: math.MaxUint64, waiting: make(chan Task, maxWaiting), writes: true}
	r.name = fmt.Sprintf("%s:%d:%04x", cmp.Or(host, "unknown"), os.Getpid(), time.Now().UnixNano()&math.MaxUint16)
	if cfg.Sample < 1 {
		r.least = uint64(cfg.Sample * math.MaxUint64)
	}
	return r, nil
}

// Wants reports whether tasks of a scope are recorded. It costs a hash.
func (r *Recorder) Wants(scope string) bool {
	return r != nil && !r.stopped.Load() && (r.cfg.Sample == 1 || mix(hash(Tenant(scope))) < r.least)
}

// mix spreads the hashes of names that differ in their last bytes alone.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// Record records a task, if Wants does. It does not block: a line that finds 20,000 others waiting is lost, and counted.
func (r *Recorder) Record(t Task) {
	if !r.Wants(t.Scope) {
		return
	}
	select {
	case r.waiting <- t:
	default:
		r.lost.Add(1)
	}
}

// Run writes the record until ctx ends, and then what was recorded by then. about returns the Slots, the Limits and the time of this
// process; it may be nil.
func (r *Recorder) Run(ctx context.Context, about func() Process) {
	log := cmp.Or(r.cfg.Logger, slog.Default())
	flush, minute := time.NewTicker(blockStays), time.NewTicker(processes)
	defer flush.Stop()
	defer minute.Stop()
	b := newBlock()
	b.add(r.about(about, Process{}))
	for {
		send := false
		select {
		case t := <-r.waiting:
			b.add(t)
			send = b.lines >= blockLines
		case <-minute.C:
			b.add(r.about(about, Process{}))
		case <-flush.C:
			send = b.lines > 0
		case <-ctx.Done():
			for more := true; more; {
				select {
				case t := <-r.waiting:
					b.add(t)
				default:
					more = false
				}
			}
			b.add(r.about(about, Process{End: true}))
			r.write(b, log)
			return
		}
		if send {
			r.write(b, log)
			b = newBlock()
		}
	}
}

func (r *Recorder) about(of func() Process, p Process) Process {
	now := p
	if of != nil {
		now = of()
	}
	now.V, now.Process, now.End, now.Full, now.Lost = Version, r.name, p.End, p.Full, r.lost.Load()
	if now.At == 0 {
		now.At = time.Now().UnixMicro()
	}
	if r.cfg.Sample < 1 {
		now.Sample = r.cfg.Sample
	}
	return now
}

// write writes a block. What cannot be written is lost.
func (r *Recorder) write(b *block, log *slog.Logger) {
	if r.stopped.Load() {
		return
	}
	_, err := r.cfg.Out.Write(b.bytes())
	switch {
	case errors.Is(err, ErrFull):
		r.stopped.Store(true)
		last := newBlock()
		last.add(r.about(nil, Process{Full: true, End: true}))
		_, _ = r.cfg.Out.Write(last.bytes()) // a file has room for it
		log.Error("the record of demand has its largest size: no further task is recorded", "process", r.name)
	case err != nil:
		r.lost.Add(int64(b.lines))
		if r.writes {
			log.Warn("cannot write the record of demand; tasks of the meantime will be missing", "error", err)
		}
	}
	r.writes = err == nil
}

// block is some lines, in gzip.
type block struct {
	text  bytes.Buffer
	zip   *gzip.Writer
	enc   *json.Encoder
	lines int
}

func newBlock() *block {
	b := &block{}
	b.zip, _ = gzip.NewWriterLevel(&b.text, gzip.BestSpeed)
	b.enc = json.NewEncoder(b.zip)
	return b
}

func (b *block) add(line any) {
	_ = b.enc.Encode(line) // of strings and numbers, to memory
	b.lines++
}

func (b *block) bytes() []byte {
	_ = b.zip.Close()
	return b.text.Bytes()
}

// File is a record in a file.
type File struct {
	f    *os.File
	left int64
}

// room is left for the line that says that a file is full.
const room = 1 << 10

// OpenFile opens the file of a record, or makes one that its owner alone may read. Blocks are added to what it has. It takes most bytes
// in all. The errors are those of os.OpenFile, and ErrFull.
func OpenFile(path string, most int64) (*File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	has, err := f.Seek(0, io.SeekEnd)
	if err != nil { // a pipe: it has no size
		has = 0
	}
	if has+2*room > most {
		_ = f.Close()
		return nil, ErrFull
	}
	return &File{f, most - has}, nil
}

// Write adds a block, or returns ErrFull.
func (f *File) Write(block []byte) (int, error) {
	if size := int64(len(block)); size > f.left || size > room && size > f.left-room {
		return 0, ErrFull
	}
	n, err := f.f.Write(block)
	f.left -= int64(n)
	return n, err
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

// stream is a record in Redis.
type stream struct {
	rdb  redis.UniversalClient
	key  string
	most int64 // entries
}

// ToRedis returns an output that keeps the newest part of the record of all processes in Redis: at most some `most` bytes, and for 8 days.
// prefix is throttle.Config.Prefix, "hw" if it is empty. Each block is two commands, and waits for Redis for a second at most.
func ToRedis(rdb redis.UniversalClient, prefix string, most int64) io.Writer {
	return &stream{rdb, streamKey(prefix), max(1, most/blockBytes)}
}

func streamKey(prefix string) string { return cmp.Or(prefix, "hw") + ":{!record}" }

func (s *stream) Write(block []byte) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.XAdd(ctx, &redis.XAddArgs{Stream: s.key, MaxLen: s.most, Approx: true, Values: []any{"z", block}})
		p.Expire(ctx, s.key, streamStay)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(block), nil
}

// FromRedis returns a reader of the record in Redis, for Read. It reads 100 blocks at a time; there is none if the first Read returns
// io.EOF.
func FromRedis(ctx context.Context, rdb redis.UniversalClient, prefix string) io.Reader {
	return &streamReader{ctx: ctx, rdb: rdb, key: streamKey(prefix), next: "-"}
}

type streamReader struct {
	ctx  context.Context //nolint:containedctx // of one reading
	rdb  redis.UniversalClient
	key  string
	next string
	has  bytes.Buffer
}

func (s *streamReader) Read(p []byte) (int, error) {
	if s.has.Len() == 0 {
		const some = 100
		entries, err := s.rdb.XRangeN(s.ctx, s.key, s.next, "+", some).Result()
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			text, _ := e.Values["z"].(string)
			s.has.WriteString(text)
			s.next = "(" + e.ID
		}
	}
	return s.has.Read(p)
}
