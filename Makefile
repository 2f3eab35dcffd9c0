# Every task of the project. `make` prints the list.

## packages that test, race and bench look at
PKG ?= ./...
## further flags of go test: TESTFLAGS='-run TestWait -v'
TESTFLAGS ?=
## the short form of histories, simulated days and programs; SHORT= for the long one
SHORT ?= -short
## bound for the tests of one package, 0 for none: each wait has a bound of its own, which is longer on a slow machine
TIMEOUT ?= 0
## how many tests of a package run at once: most wait for something, few compute
PARALLEL ?= 8
## benchmarks to run, by regular expression
BENCH ?= .
## how long each benchmark runs, or 1x for once
BENCHTIME ?= 1s
## how often each benchmark runs
COUNT ?= 1
## the bench's scenarios: all (half an hour) or short; with BENCHTIME=1x always short
SCENARIOS ?= all
## WRITE=1 writes the bench's table into docs/benchmarks.md, with a BENCH only its rows, and draws docs/starts.svg
WRITE ?=
## how long each fuzz target runs
FUZZTIME ?= 30s
## how many days soak simulates, drawn at random; SEEDS= for the two of the tests
SEEDS ?= 20
## how many days each of them is
DAYS ?= 1
## how many steps histories takes at least
STEPS ?= 200000
## histories seeks one of so many planted faults, drawn at random; 1 for all
FAULTS ?= 1
## servers for compat: paths of redis-server or valkey-server programs; none for the valkey-server on the PATH
SERVER ?=
## fuzz targets to run: those with this in their name
FUZZ ?=
## where run/worker and run/enqueue find Redis
REDIS ?= embedded
## the limits of run/worker
LIMITS ?= examples/quickstart/limits.yaml
## the tasks of run/enqueue
TASKS ?= examples/quickstart/tasks.ndjson
## PAGE=1 serves the page of the demo's worker, and keeps both running until Ctrl-C
PAGE ?=
## further flags of run/worker, run/enqueue, demo and release
ARGS ?=
## the version of a release: v0.1.0
VERSION ?=

GOLANGCI_LINT = 2.15.0
# runs go in this module and in those of test/bench, test/browser, throttle/riverlimit, throttle/serve/envoy and worker/oteltask; packages follow a --
GO_IN_ALL = test/modules.sh
# The packages of the main module whose tests only make check runs: they take minutes, or more than a redis-server.
CHECKED = ./test/faults
# The packages whose goroutines meet, which race runs with the race detector.
RACED = ./throttle ./throttle/demand ./throttle/policystore ./throttle/limitsfile ./throttle/usage ./throttle/roundtrip ./queue ./queue/schedule ./worker ./worker/events \
	./worker/page ./worker/internal/...
# Tests in which one goroutine computes, such as miniredis interpreting Lua, and the longest of whole workers: under the race
# detector they take ten times as long, more than a third of its time. make test runs them. Of patterns that match, go test
# heeds the first: one of a subtest before one of a test would have the test run.
COMPUTES = 'Histories$$|BruteForce$$|AgainstModel$$|^Test(SharesOfThoseWhoWait|ShareScenes|Lanes|Pace|RunTimesRange|ThreeDaysBehindWhatNoClockTells|NeverMoreThanTheLarger|SlowLimitsLeaveRoom|LateIsNeverOver|Uncertainty|BatchMemory|BreakerOfAnAPIThatIsDown|RightsComeFirst)$$|/^miniredis$$|//^miniredis$$'
# The packages whose tests take longest are begun first: begun last, as their names would have it, one of them has the end to itself.
LONGEST = ./worker ./throttle ./test/e2e
# Each package that names go-redis' client is compiled with wrappers of its 600 methods: without inlining and DWARF in a third
# of the time, and all tests in half of it. A GOGC of 200 trades memory for time. The linter,
# the demo and the rest of make check use what was compiled so.
QUICK = GOGC=$${GOGC:-200} GOFLAGS="$$GOFLAGS '-gcflags=github.com/headway-go/headway/...=-l -dwarf=false'"
GO_TEST = test -vet=off -shuffle=on -count=1 -p 3 -parallel $(PARALLEL) -timeout $(TIMEOUT) $(SHORT) $(TESTFLAGS)
# The packages that have benchmarks: the tests of the others need not be compiled for them.
BENCHED = $(sort $(dir $(shell grep -rl --include='*_test.go' '^func Benchmark' .)))

.DEFAULT_GOAL := help
.PHONY: help build demo test test/more race pictures bench soak histories faults compat fuzz lint fmt run/worker run/enqueue check release

help: ## This list
	@echo 'Targets:'
	@awk -F ':.*## ' '/^[a-z\/]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo 'Variables, as in make bench BENCHTIME=2s:'
	@awk '/^## / { about = substr($$0, 4) } \
		/^[A-Z]+ \?=/ { value = $$0; sub(/^[A-Z]+ \?= ?/, "", value); printf "  %-12s %s [%s]\n", $$1, about, value }' \
		$(firstword $(MAKEFILE_LIST))

build: ## Compile every package, and both programs into bin/
	$(GO_IN_ALL) build -- ./...
	go build -o bin/ ./cmd/worker ./cmd/enqueue

demo: ## Run 3 tenants' calls under nested limits, and judge them from the API's own log
	@echo 'Compiling worker, enqueue and the demo: some minutes the first time, with what they import, and seconds after that.'
	$(QUICK) go build -o bin/ ./cmd/worker ./cmd/enqueue ./examples/quickstart
	@echo 'Running 455 tasks of three tenants, for about a minute.'
	bin/quickstart -worker bin/worker -enqueue bin/enqueue $(if $(PAGE),-page) $(ARGS)
	$(if $(PAGE),,@echo 'To watch it in a browser: make demo PAGE=1 serves the worker'"'"'s page, and keeps it open.')

test: ## What a change must pass, in about five minutes; installs redis-server if it is missing
	@test/setup.sh
	$(QUICK) $(if $(filter ./...,$(PKG)),go $(GO_TEST) $(LONGEST) $$(go list ./... | grep -v $(CHECKED:./%=-e '/%$$')),$(GO_IN_ALL) $(GO_TEST) -- $(PKG))

test/more: ## The tests of the page in Chromium, alert rules, failing servers and networks, tracing, River and peers; installs what they need
	@test/setup.sh -browser -promtool -postgres
	$(QUICK) $(GO_IN_ALL) $(GO_TEST) -- $(CHECKED) ./test/browser ./test/bench/... ./throttle/riverlimit ./throttle/serve/envoy/... ./worker/oteltask
	$(QUICK) go test -vet=off -count=1 -run '^Test(Deploy|Release|GoBlocks)$$' ./test/project # their long forms need promtool, and what other modules do

race: ## The tests of packages whose goroutines meet, with the race detector; installs a C compiler if it is missing
	@test/setup.sh -race
	@# each program would wait a second at its end for goroutines to race
	$(QUICK) GORACE="atexit_sleep_ms=0 $$GORACE" go $(GO_TEST) -race -skip $(COMPUTES) $(if $(filter ./...,$(PKG)),$(RACED),$(PKG))

pictures: ## Take pictures of each screen of the page, with a live worker behind it: docs/pictures; git has those that docs show
	@test/setup.sh -browser
	@mkdir -p docs/pictures
	HEADWAY_PICTURES=$(CURDIR)/docs/pictures go -C test/browser test -count=1 -run TestScreens .

bench: ## Every benchmark, one after the other, and one table, peers beside us
	@test/setup.sh $(if $(filter ./... ./test/browser,$(PKG)),-browser) $(if $(filter ./... ./throttle/riverlimit,$(PKG)),-postgres)
	@mkdir -p bin && rm -f bin/bench.md
	@HEADWAY_BENCH_SCENARIOS=$(if $(filter 1x,$(BENCHTIME)),short,$(SCENARIOS)) HEADWAY_BENCH_WRITE=$(WRITE) \
		HEADWAY_BENCH_TABLE=$(CURDIR)/bin/bench.md \
		$(GO_IN_ALL) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -count $(COUNT) -benchmem -vet=off -timeout 2h $(TESTFLAGS) -- $(if $(filter ./...,$(PKG)),$(BENCHED),$(PKG)); \
		status=$$?; if [ -f bin/bench.md ]; then cat bin/bench.md; fi; exit $$status

soak: ## The long rest, some hours: all tests in their long form, SEEDS random days of traffic, histories, faults, a million tasks
	@test/setup.sh -browser -promtool -postgres
	$(MAKE) test test/more SHORT=
	SIM_SEEDS=$(SEEDS) go test ./test/sim -count=1 -timeout 12h -v -args -days $(DAYS)
	$(MAKE) histories faults
	$(MAKE) bench PKG=./test/bench BENCH=Soak
	HEADWAY_BENCH_SCENARIOS=all go -C test/bench test -run AtTheAPI -count=1 -timeout 1h -v .

histories: ## Random histories of limits and of those who wait, each against its model: STEPS of them, and planted faults
	@test/setup.sh
	@said=$$(export $(QUICK) HISTORY_STEPS=$(STEPS) HISTORY_FAULTS=$(FAULTS); \
		go test ./test/reference -run 'DecisionsAreAsThePagesSay|PlantedFaults' -count=1 -vet=off -timeout 0 -v $(TESTFLAGS) && \
		go test ./internal/wire -run 'Histories$$|PlantedFaults' -histories $$(($(STEPS) / 500)) -count=1 -vet=off -timeout 0 -v $(TESTFLAGS)); \
	status=$$?; \
	if [ $$status = 0 ]; then echo "$$said" | grep -a -e 'seed ' -e ' steps in ' -e '^ok'; \
	else echo "$$said" | grep -av -e '^=== ' -e '--- PASS'; exit $$status; fi

faults: ## Masters killed, slots moved, servers frozen, full, read-only: all at full length, bare asynq beside
	@test/setup.sh
	HEADWAY_FAULTS=full go test ./test/faults -count=1 -timeout 1h -v $(TESTFLAGS)

compat: ## The tests of scripts, limiter, queue and worker, and the faults, against each SERVER
	@test/compat.sh $(SERVER) -- $(TESTFLAGS) ./lua ./throttle/... ./queue/... ./worker/... ./test/redistest ./test/faults

fuzz: ## Every fuzz target, one after the other
	@$(QUICK) test/fuzz.sh $(FUZZTIME) $(FUZZ)

lint: ## gofmt, and in each module go mod tidy and golangci-lint with the arrows between packages
	@$(QUICK) test/lint.sh $(GOLANGCI_LINT)

fmt: ## Format the Go files
	gofmt -l -w .

run/worker: build ## A worker on its embedded Redis, until Ctrl-C
	bin/worker -redis $(REDIS) -limits $(LIMITS) $(ARGS)

run/enqueue: build ## Enqueue a file of tasks for run/worker
	bin/enqueue batch -redis $(REDIS) $(ARGS) $(TASKS)

check: ## Exactly what CI runs: test, demo, lint, test/more, race, fuzz, planted faults
	.ci/run

release: ## Pack both programs for Linux and macOS into bin/release, with VERSION in them
	@.ci/release $(ARGS) '$(VERSION)'
