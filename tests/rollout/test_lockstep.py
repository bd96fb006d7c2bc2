from earl.rollout.drivers import play


def test_episodes_end_in_their_own_time_and_come_back_in_order(episode, script, text):
    sampler = script(("1", "2", "3"), ("9",), ("1", "8"))
    results = play([episode(session) for session in range(3)], sampler)
    assert [text(result.tokens) for result in results] == [
        "(0$[1$(1$[2$(2$[3$",
        "(0$[9$",
        "(0$[1$(1$[8$",
    ]
    assert [[prompt.session for prompt in prompts] for prompts in sampler.prompts] == [[0, 1, 2], [0, 2], [0]]


def test_a_session_is_released_as_soon_as_its_episode_ends(episode, script):
    sampler = script(("1", "2", "3"), ("9",), ("1", "8"))
    play([episode(session) for session in range(3)], sampler)
    assert sampler.released == [1, 2, 0]


def test_no_episodes_ask_for_nothing(script):
    sampler = script()
    assert play([], sampler) == []
    assert sampler.prompts == []
