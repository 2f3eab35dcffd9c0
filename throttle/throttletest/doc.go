// Package throttletest supports tests of programs that use package throttle.
//
// [Limiter] is a fake with scripted answers: it decides nothing, returns its script and records the
// requests. Use it to test what a program does when it is limited, when it has to wait and when Redis
// is unavailable.
//
// [New] is a real limiter over a Redis in memory, without a network, that works in bubbles of
// testing/synctest: there an hour of limits takes no time, durations are exact, and waiting moves the
// clock. Use it to test that limits are correct. [NewWithRedis] also returns that Redis, to take it
// down ([Redis.Close]), to move its clock outside of a bubble ([Redis.Advance]) or to set that to a
// date ([Redis.SetTime]).
package throttletest
