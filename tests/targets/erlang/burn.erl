%% outer -> middle -> leaf_hot (75 %), outer -> side_cold -> leaf_cold (25 %)
%%
%%   erlc burn.erl && erl -noshell +JPperf true +S 1 -pa . -run burn main [SECONDS]
%%
%% +JPperf true writes /tmp/jit-PID.dump and /tmp/perf-PID.map and keeps frame pointers; dump or map alone keep none
%% (OTP 25).
-module(burn).
-export([main/1, outer/1, middle/1, leaf_hot/2, side_cold/1, leaf_cold/2]).

leaf_hot(0, X) -> X;
leaf_hot(N, X) ->
    Y = X bxor ((X bsl 5) band 16#ffffffff),
    leaf_hot(N - 1, Y bxor (Y bsr 7)).

leaf_cold(0, X) -> X;
leaf_cold(N, X) ->
    Y = X bxor ((X bsl 5) band 16#ffffffff),
    leaf_cold(N - 1, Y bxor (Y bsr 7)).

middle(N) ->
    R = leaf_hot(N * 3, 88172645),
    R + 1.

side_cold(N) ->
    R = leaf_cold(N, 12345678),
    R + 1.

outer(N) ->
    A = middle(N),
    B = side_cold(N),
    A bxor B.

main([]) -> main(["4"]);
main([Seconds]) ->
    io:format("ready pid=~s~n", [os:getpid()]),
    End = erlang:monotonic_time(millisecond) + 1000 * list_to_integer(Seconds),
    loop(End, 0, 1).

loop(End, Calls, Noise) ->
    case erlang:monotonic_time(millisecond) > End of
        true ->
            io:format("calls ~p~n", [Calls]),
            halt(0);
        false ->
            %% A tenth to nineteen tenths of 20000, at random: calls of similar length fall into step with a profiler's
            %% clock.
            Next = (Noise * 1103515245 + 12345) band 16#7fffffff,
            outer(2000 + (Next bsr 8) rem 36001),
            loop(End, Calls + 1, Next)
    end.
