package main

import (
	"fmt"
	"io"
	"time"
)

const (
	terminalStep = 200 * time.Millisecond
	plainStep    = 5 * time.Second
)

// progress prints how far the calls are: one line that is rewritten on a
// terminal, cut to its width, and a line every five seconds elsewhere.
type progress struct {
	out   io.Writer
	width func() int // of the terminal; nil where there is none
	total int

	start, next time.Time
	last        time.Time // when rate was last measured
	lastCalls   int
	rate        float64
}

func newProgress(out io.Writer, width func() int, total int) *progress {
	now := time.Now()
	return &progress{out: out, width: width, total: total, start: now, last: now, next: now}
}

// tick shows a line when it is time for one. worst is asked only then.
func (p *progress) tick(calls, done int, worst func() string) {
	if time.Now().Before(p.next) {
		return
	}
	p.show(calls, done, worst)
}

func (p *progress) show(calls, done int, worst func() string) {
	now := time.Now()
	p.next = now.Add(plainStep)
	if p.width != nil {
		p.next = now.Add(terminalStep)
	}
	if d := now.Sub(p.last); d >= time.Second {
		p.rate = float64(calls-p.lastCalls) / d.Seconds()
		p.last, p.lastCalls = now, calls
	}
	line := fmt.Sprintf("%3ds  %d of %d done  %d calls  %.1f/s  %s",
		int(now.Sub(p.start).Seconds()), done, p.total, calls, p.rate, worst())
	if p.width != nil {
		text := []rune(line)
		line = "\r" + string(text[:min(len(text), max(0, p.width()-1))]) + "\x1b[K"
	} else {
		line += "\n"
	}
	fmt.Fprint(p.out, line)
}

// end leaves the last line standing.
func (p *progress) end() {
	if p.width != nil {
		fmt.Fprintln(p.out)
	}
}
